#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace dlslime::shm {

// Shared record in which both ends of a large message agree on the pieces to
// copy: the receiver takes pieces from the front, the sender from the back,
// since a single core does not reach the memory's bandwidth. The desk lies in
// the shared segment; the receiver opens and closes the desk, the sender only
// takes pieces.
//
// All shared decisions are in a single 64-bit word, changed by compare-exchange
// while the desk is open:
//   epoch:16 | total:16 | front:16 | back:16
// Pieces 0..front-1 are the receiver's, total-back..total-1 the sender's;
// `epoch` counts the openings. A taken piece keeps the desk open until `done`
// counts the piece, so the desk's other fields, read AFTER taking a piece,
// belong to the piece.
struct CopyDesk {
  alignas(64) std::atomic<uint64_t> word;
  std::atomic<uint32_t> done; // pieces finished by both ends
  std::atomic<uint32_t> error; // 0, or the sender's errno or CopyFault code
  std::atomic<uint64_t> id; // the sender's id of the message
  std::atomic<uint64_t> destination; // address in the receiver
  std::atomic<uint64_t> length;
};

constexpr uint32_t kMaxPieces = 0xffff;

// Bytes of a piece of a message of `length` bytes, equal at both ends. Measured
// on two cores without a common cache: a message of 1 MiB is fastest in pieces
// of 256 to 512 KiB, 16 MiB and more in pieces of 1 MiB; each call costs 0.8 to
// 1 us, so messages up to 512 KiB have at most two pieces.
size_t pieceBytes(size_t length);
uint32_t pieceCount(size_t length);

// Opens a desk for a message, at the receiver.
void openDesk(
    CopyDesk& desk,
    uint64_t id,
    uint64_t destination,
    uint64_t length);
// Takes the next piece from the front, at the receiver; nothing if all pieces
// are taken.
std::optional<uint32_t> takeFront(CopyDesk& desk);
// Makes all further takes fail, at the receiver.
void closeDesk(CopyDesk& desk);
struct DeskState {
  uint32_t total, taken, done;
};
DeskState deskState(const CopyDesk& desk);

// Takes the next piece from the back, at the sender; nothing if all pieces are
// taken.
std::optional<uint32_t> takeBack(CopyDesk& desk);
// Counts a taken piece as done, at either end, once the piece's bytes are in
// place or have failed with `error`.
void finishPiece(CopyDesk& desk, int error);

} // namespace dlslime::shm
