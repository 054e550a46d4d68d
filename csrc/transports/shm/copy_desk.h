#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace dlslime::shm {

// One core does not reach the memory's bandwidth, so both ends of a large
// message copy it: the receiver from the front, the sender from the back. A
// desk is where they agree on who copies which piece. It lies in the shared
// segment; the receiver opens and closes it, the sender only takes pieces.
//
// All shared decisions are in one 64-bit word, changed by compare-exchange:
//   epoch:16 | total:16 | front:16 | back:16
// Pieces 0..front-1 are the receiver's, total-back..total-1 the sender's. A
// piece that was taken keeps the desk open until `done` counts it, so what is
// read from the other fields AFTER taking a piece belongs to that piece.
struct CopyDesk {
  alignas(64) std::atomic<uint64_t> word;
  std::atomic<uint32_t> done; // pieces finished, by both ends
  std::atomic<uint32_t> error; // errno of a piece the sender failed at
  std::atomic<uint64_t> id; // the sender's number for the message
  std::atomic<uint64_t> destination; // address in the receiver
  std::atomic<uint64_t> length;
};

constexpr uint32_t kMaxPieces = 0xffff;

// The size of a piece, the same at both ends. Measured (two cores without a
// common cache): 1 MiB is best in pieces of 256 to 512 KiB, 16 MiB and more
// in pieces of 1 MiB; each call costs 0.8-1 us, so small messages make two.
size_t pieceBytes(size_t length);
uint32_t pieceCount(size_t length);

// Receiver's side.
void openDesk(
    CopyDesk& desk,
    uint64_t id,
    uint64_t destination,
    uint64_t length);
std::optional<uint32_t> takeFront(CopyDesk& desk);
// No piece can be taken any more.
void closeDesk(CopyDesk& desk);
struct DeskState {
  uint32_t total, taken, done;
};
DeskState deskState(const CopyDesk& desk);

// Sender's side.
std::optional<uint32_t> takeBack(CopyDesk& desk);
// Either side, after the piece's bytes are in place (or failed).
void finishPiece(CopyDesk& desk, int error);

} // namespace dlslime::shm
