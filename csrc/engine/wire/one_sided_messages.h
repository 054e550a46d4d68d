#pragma once

#include "base/memory/fault.h"
#include "engine/wire/fields.h"

// Reads and writes of registered memory (docs/protocol.md, "One-sided
// transfers"). `region` is the target's number of the region, `id` the
// initiator's number of the transfer. `group` is the target's number of the
// group, and `source` the initiator's rank in the group.

namespace dlslime::wire {

// Piece of a transfer, in the payload of a GetRequest or Put.
struct FramePiece {
  uint64_t offset = 0; // in the region, in bytes
  uint64_t size = 0; // bytes
};

// Asks where the region can be reached.
struct Resolve {
  static constexpr auto kType = MessageType::kResolve;
  uint32_t group = 0;
  uint32_t source = 0;
  uint64_t region = 0;
  uint64_t secret = 0;

  template <typename Message, typename Visit>
  static void fields(Message& resolve, const Visit& visit) {
    visit("group", resolve.group, kGroup);
    visit("source", resolve.source, kSource);
    visit("region", resolve.region, kId);
    visit("secret", resolve.secret, kAddress);
  }
};

// Answers a Resolve: with status kOk the region is lent to the initiator from
// now on, else the region is not lent.
struct Resolved {
  static constexpr auto kType = MessageType::kResolved;
  FinishStatus status{};
  uint64_t region = 0;
  uint64_t size = 0; // bytes
  RemoteBuffer memory;

  template <typename Message, typename Visit>
  static void fields(Message& resolved, const Visit& visit) {
    visit("status", resolved.status, kStatus);
    visit("region", resolved.region, kId);
    visit("size", resolved.size, kLength);
    visit("memory", resolved.memory, kMemory);
  }
};

// Asks the initiator to give the region back.
struct RevokeKey {
  static constexpr auto kType = MessageType::kRevokeKey;
  uint64_t region = 0;

  template <typename Message, typename Visit>
  static void fields(Message& revoke, const Visit& visit) {
    visit("region", revoke.region, kId);
  }
};

// Gives the region back: no transfer of the initiator touches the region any
// more.
struct KeyRevoked {
  static constexpr auto kType = MessageType::kKeyRevoked;
  uint64_t region = 0;

  template <typename Message, typename Visit>
  static void fields(Message& revoked, const Visit& visit) {
    visit("region", revoked.region, kId);
  }
};

// Asks the target to send pieces; the payload has a FramePiece for each.
struct GetRequest {
  static constexpr auto kType = MessageType::kGetRequest;
  uint32_t group = 0;
  uint32_t source = 0;
  uint64_t id = 0;
  uint64_t region = 0;
  uint64_t askedBefore = 0; // bytes asked for by earlier requests

  template <typename Message, typename Visit>
  static void fields(Message& request, const Visit& visit) {
    visit("group", request.group, kGroup);
    visit("source", request.source, kSource);
    visit("id", request.id, kId);
    visit("region", request.region, kOffset);
    visit("askedBefore", request.askedBefore, kAddress);
  }
};

// Answers a GetRequest: the payload is the next part of the requested bytes.
struct GetData {
  static constexpr auto kType = MessageType::kGetData;
  uint64_t id = 0;
  // Position of the payload in all requested bytes of the transfer.
  uint64_t offset = 0;

  template <typename Message, typename Visit>
  static void fields(Message& data, const Visit& visit) {
    visit("id", data.id, kId);
    visit("offset", data.offset, kOffset);
  }
};

// Asks the target to write: the payload has a FramePiece for each piece,
// followed by the bytes.
struct Put {
  static constexpr auto kType = MessageType::kPut;
  uint32_t group = 0;
  uint32_t source = 0;
  uint64_t id = 0;
  uint64_t region = 0;
  uint64_t pieces = 0; // number of pieces in the payload
  bool last = false; // true for the last Put of the transfer

  template <typename Message, typename Visit>
  static void fields(Message& put, const Visit& visit) {
    visit("group", put.group, kGroup);
    visit("source", put.source, kSource);
    visit("id", put.id, kId);
    visit("region", put.region, kOffset);
    visit("pieces", put.pieces, kLength);
    visit("last", put.last, kSlot);
  }
};

// Says that all bytes of a write are in place, or that the transfer, a write or
// a read, has failed.
struct PutAck {
  static constexpr auto kType = MessageType::kPutAck;
  FinishStatus status{};
  uint64_t id = 0;
  Fault fault = Fault::kNone; // reason of kUnreadable or kUnwritable

  template <typename Message, typename Visit>
  static void fields(Message& ack, const Visit& visit) {
    visit("status", ack.status, kStatus);
    visit("id", ack.id, kId);
    visit("fault", ack.fault, kSlot);
  }
};

} // namespace dlslime::wire
