#pragma once

#include <cstdint>
#include <type_traits>

#include "interface/memory.h"

namespace dlslime {

// The messages of the engine; csrc/engine/wire has the fields of each, and
// docs/protocol.md the rules. The numbers are part of the protocol.
enum class MessageType : uint8_t {
  // Groups.
  kJoin = 1,
  kJoined,
  kStale,
  kLeave,
  kRefused,
  // Messages of send and recv.
  kEager,
  kRts,
  kStreamRequest,
  kData,
  kFinish,
  kRevoke,
  kCredit,
  kTruncated,
  kRtr,
  kRetract,
  kRetracted,
  kMoved,
  // Reads and writes of registered memory.
  kResolve,
  kResolved,
  kRevokeKey,
  kKeyRevoked,
  kGetRequest,
  kGetData,
  kPut,
  kPutAck,
  // Memory of GPUs.
  kShare,
  kUnshare,
  kReshare,
  kNop,
  kPushed, // never sent: the receiver makes it of bytes written into an Rtr
};
// The last type that may be sent.
constexpr auto kLastMessageType = MessageType::kNop;

// How a message of an Rts, or a transfer, has ended at the other end.
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
  kUnreadable, // the memory read from can't be touched
  kUnwritable, // the memory written to can't be touched
};

// One cache line, the same on every host: all are little-endian, since the
// handshake refuses others. Routes look at `type`, `sequence` and
// `payloadSize`; the other members belong to the message of that type, and are
// zero where it has no use for them.
struct MessageHeader {
  MessageType type{};
  FinishStatus status{};
  uint16_t slot = 0;
  uint32_t group = 0;
  uint64_t sequence = 0; // counts all messages of a pair in one direction
  uint32_t source = 0;
  uint32_t tag = 0;
  uint64_t length = 0;
  uint64_t id = 0;
  uint64_t offset = 0;
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t payloadSize = 0; // bytes that follow; set by the route
};
static_assert(sizeof(MessageHeader) == 64);
static_assert(std::is_trivially_copyable_v<MessageHeader>);

} // namespace dlslime
