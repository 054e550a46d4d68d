#pragma once

#include <cstdint>
#include <type_traits>

#include "interface/memory.h"

namespace dlslime {

// What one control message says. "Sender" and "receiver" are the ends of the
// tensor message that it is about; docs/protocol.md tells the whole story.
enum class MessageType : uint8_t {
  kJoin = 1, // group, source, id = the joiner's group, offset = its epoch
  kJoined, // group = the joiner's, id = the accepting group, tag = the joiner
  kStale, // group = the joiner's: its address record is from another life
  kLeave, // group, source: this rank has left the group; tag = 1: amid things,
          // since it had aborted it
  kRefused, // group = the joiner's, source, tag = a RefusalReason, length:
            // nobody can join that group now
  kEager, // group, source, tag, length; the payload is the message
  kRts, // group, source, tag, length, id, address, key, offset = more keys
  kStreamRequest, // id, length = where to begin, offset = the pull's id: stream
                  // this announced message to me in kData frames
  kData, // id, offset; the payload is a piece of the message
  kFinish, // id, status; offset = the receiver's capacity if truncated
  kRevoke, // id: forget this announced message, unless you have matched it
  kCredit, // length = eager bytes that have left the receiver's memory
  kTruncated, // group, tag, length, id = its sequence, offset = capacity: an
              // eager message was longer than the receive it met
  kRtr, // group, source, tag, length = capacity, id, address, key, slot;
        // offset = the last sequence seen: write the next message there
  kRetract, // group, tag, id: forget this offer
  kRetracted, // id: it is forgotten, and what was written came before this
  kMoved, // as kRts: after the connection was replaced, the announced
          // message is to be found there
  // One-sided transfers; "owner" is the end whose registered memory they are
  // about, and ids of memory are its own.
  kResolve, // group, source, id of memory, address = its secret
  kResolved, // id of memory, status, length, address, key, offset = more keys
  kRevokeKey, // id of memory: the owner wants it back
  kKeyRevoked, // id of memory: nothing of ours touches it any more
  kGetRequest, // group, source, id, offset = of memory, address = bytes fetched
               // by the frames before; the payload: FramePieces
  kGetData, // id; offset; the payload continues what was fetched
  kPut, // group, source, id, offset = of memory, length = pieces, slot = 1 in
        // the last one; the payload: FramePieces, and then their bytes
  kPutAck, // id, status, slot: what was put, or could not be fetched
  kShare, // id; the payload tells how to map an allocation of a GPU's memory
  kUnshare, // id: that allocation is not shared any more
  kReshare, // id: what kShare told of your allocation has had its time
  kNop, // takes the place of a message that has lost its meaning
  kPushed, // made at the receiver of what was written into an offer; never sent
};
constexpr auto kLastMessageType = MessageType::kNop; // that is sent

// Why nobody can join a group; with what kRefused says in `length`.
enum class RefusalReason : uint32_t {
  kTaken = 1, // an endpoint that has its peer
  kTooManyGuests, // a hub with so many that it has not accepted
  kTooMuchUnread, // a hub that keeps so many bytes of guests that have left
  kTooManyOfOne, // a hub where this process has so many endpoints
};

// How an announced message ended at the receiver.
enum class FinishStatus : uint8_t {
  kOk = 0,
  kTruncated,
  kCancelled, // the receive timed out or was aborted in the middle
  kRevoked, // never matched, forgotten as asked
  kGroupGone,
  kFailed,
  kUnknownMemory, // never registered, not any more, or with another secret
  kOutOfRange,
  kForReading, // registered so, and not to be written
  kUnreadable, // the memory read from can't be touched; kPutAck: slot = a
               // Fault
  kUnwritable, // the same of the memory written to
};

// One cache line, the same on every host (all are little-endian; the
// handshake refuses others). Fields that a type does not name are zero.
struct MessageHeader {
  MessageType type{};
  FinishStatus status{};
  uint16_t slot = 0; // kRtr, kRts, kMoved: see RemoteBuffer
  uint32_t group = 0; // the RECEIVING process's id of the group
  uint64_t sequence = 0; // per direction of a pair, counts every message
  uint32_t source = 0; // rank of the sending process in the group
  uint32_t tag = 0;
  uint64_t length = 0; // bytes of the whole tensor message
  uint64_t id = 0; // the sender's number for the announced message
  uint64_t offset = 0; // bytes
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t payloadSize = 0; // bytes that follow; set by the route
};
static_assert(sizeof(MessageHeader) == 64);
static_assert(std::is_trivially_copyable_v<MessageHeader>);

// A piece as kGetRequest and kPut name it: both in bytes.
struct FramePiece {
  uint64_t offset = 0; // in the owner's memory
  uint64_t size = 0;
};

// Where kRts and kMoved say that the sender's memory is, and kResolved
// the owner's.
inline void setRemote(MessageHeader& header, const RemoteBuffer& memory) {
  static_assert(RemoteBuffer::kMostKeys == 3);
  header.slot = memory.slot;
  header.address = memory.address;
  header.key = memory.keys[0];
  header.offset = uint64_t{memory.keys[2]} << 32 | memory.keys[1];
}
inline RemoteBuffer remoteOf(const MessageHeader& header) {
  return {
      header.address,
      {header.key,
       static_cast<uint32_t>(header.offset),
       static_cast<uint32_t>(header.offset >> 32)},
      header.slot};
}

} // namespace dlslime
