#pragma once

#include "engine/wire/fields.h"

// Messages of send and recv (docs/protocol.md, "Two-sided messages"). "Sender"
// and "receiver" are the ends of the tensor message. `group` is the receiving
// process's number of the group, and `source` the sending process's rank in the
// group.

namespace dlslime::wire {

// Tensor message with all bytes in the payload.
struct Eager {
  static constexpr auto kType = MessageType::kEager;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint64_t length = 0; // bytes

  template <typename Message, typename Visit>
  static void fields(Message& eager, const Visit& visit) {
    visit("group", eager.group, kGroup);
    visit("source", eager.source, kSource);
    visit("tag", eager.tag, kTag);
    visit("length", eager.length, kLength);
  }
};

// Request to send: the receiver fetches the bytes once a receive has matched.
struct Rts {
  static constexpr auto kType = MessageType::kRts;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint64_t length = 0; // bytes
  uint64_t id = 0; // the sender's number of the message
  RemoteBuffer memory; // the sender's

  template <typename Message, typename Visit>
  static void fields(Message& rts, const Visit& visit) {
    visit("group", rts.group, kGroup);
    visit("source", rts.source, kSource);
    visit("tag", rts.tag, kTag);
    visit("length", rts.length, kLength);
    visit("id", rts.id, kId);
    visit("memory", rts.memory, kMemory);
  }
};

// Repeats an Rts after the connection was replaced, with the memory as the new
// connection names the memory.
struct Moved : Rts {
  static constexpr auto kType = MessageType::kMoved;
};

// Asks the sender to stream the message of an Rts in Data frames.
struct StreamRequest {
  static constexpr auto kType = MessageType::kStreamRequest;
  uint64_t id = 0; // the sender's number of the message
  uint64_t pull = 0; // the receiver's number of the stream
  uint64_t begin = 0; // first byte to be sent

  template <typename Message, typename Visit>
  static void fields(Message& request, const Visit& visit) {
    visit("id", request.id, kId);
    visit("pull", request.pull, kOffset);
    visit("begin", request.begin, kLength);
  }
};

// Next bytes of a stream. kFailed: the stream's sender can't read the rest.
struct Data {
  static constexpr auto kType = MessageType::kData;
  FinishStatus status{};
  uint64_t pull = 0; // the receiver's number of the stream
  uint64_t offset = 0; // position of the payload in the message, in bytes

  template <typename Message, typename Visit>
  static void fields(Message& data, const Visit& visit) {
    visit("status", data.status, kStatus);
    visit("pull", data.pull, kId);
    visit("offset", data.offset, kOffset);
  }
};

// Tells how the message of an Rts has ended at the receiver.
struct Finish {
  static constexpr auto kType = MessageType::kFinish;
  FinishStatus status{};
  uint64_t id = 0; // the sender's number of the message
  uint64_t capacity = 0; // kTruncated: bytes of the receive

  template <typename Message, typename Visit>
  static void fields(Message& finish, const Visit& visit) {
    visit("status", finish.status, kStatus);
    visit("id", finish.id, kId);
    visit("capacity", finish.capacity, kOffset);
  }
};

// Asks to forget the message of an Rts, unless a receive has matched the
// message.
struct Revoke {
  static constexpr auto kType = MessageType::kRevoke;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint64_t id = 0; // the sender's number of the message

  template <typename Message, typename Visit>
  static void fields(Message& revoke, const Visit& visit) {
    visit("group", revoke.group, kGroup);
    visit("source", revoke.source, kSource);
    visit("tag", revoke.tag, kTag);
    visit("id", revoke.id, kId);
  }
};

// Returns credit: eager messages have left the receiver's memory.
struct Credit {
  static constexpr auto kType = MessageType::kCredit;
  uint64_t bytes = 0; // sum of eagerCost() over the messages

  template <typename Message, typename Visit>
  static void fields(Message& credit, const Visit& visit) {
    visit("bytes", credit.bytes, kLength);
  }
};

// Says that an eager message was longer than the receive; the send has already
// ended.
struct Truncated {
  static constexpr auto kType = MessageType::kTruncated;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint64_t length = 0; // bytes of the message
  uint64_t messageSequence = 0; // sequence number of the message
  uint64_t capacity = 0; // bytes of the receive

  template <typename Message, typename Visit>
  static void fields(Message& truncated, const Visit& visit) {
    visit("group", truncated.group, kGroup);
    visit("source", truncated.source, kSource);
    visit("tag", truncated.tag, kTag);
    visit("length", truncated.length, kLength);
    visit("messageSequence", truncated.messageSequence, kId);
    visit("capacity", truncated.capacity, kOffset);
  }
};

// Ready to receive: offers memory for the sender's next message of the tag.
struct Rtr {
  static constexpr auto kType = MessageType::kRtr;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint64_t capacity = 0; // bytes
  uint64_t id = 0; // the receiver's number of the offer
  uint64_t lastSeen = 0; // last sequence number seen by the receiver
  RemoteBuffer memory; // the receiver's

  template <typename Message, typename Visit>
  static void fields(Message& rtr, const Visit& visit) {
    visit("group", rtr.group, kGroup);
    visit("source", rtr.source, kSource);
    visit("tag", rtr.tag, kTag);
    visit("capacity", rtr.capacity, kLength);
    visit("id", rtr.id, kId);
    visit("lastSeen", rtr.lastSeen, kOffset);
    visit("memory", rtr.memory, kPushedMemory);
  }
};

// Asks to forget an Rtr.
struct Retract {
  static constexpr auto kType = MessageType::kRetract;
  uint32_t group = 0;
  uint32_t tag = 0;
  uint64_t id = 0; // the receiver's number of the offer

  template <typename Message, typename Visit>
  static void fields(Message& retract, const Visit& visit) {
    visit("group", retract.group, kGroup);
    visit("tag", retract.tag, kTag);
    visit("id", retract.id, kId);
  }
};

// Says that the Rtr is forgotten: any push into the memory came before.
struct Retracted {
  static constexpr auto kType = MessageType::kRetracted;
  uint64_t id = 0; // the receiver's number of the offer

  template <typename Message, typename Visit>
  static void fields(Message& retracted, const Visit& visit) {
    visit("id", retracted.id, kId);
  }
};

// Takes up the sequence number of a message that is not needed any more.
struct Nop {
  static constexpr auto kType = MessageType::kNop;

  template <typename Message, typename Visit>
  static void fields(Message& /*nop*/, const Visit& /*visit*/) {}
};

// Message written by the peer into the memory of an Rtr. Never sent: the
// receiver makes the header from the event of the route.
struct Pushed {
  static constexpr auto kType = MessageType::kPushed;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint64_t length = 0; // bytes
  uint64_t id = 0; // the receiver's number of the offer

  template <typename Message, typename Visit>
  static void fields(Message& pushed, const Visit& visit) {
    visit("group", pushed.group, kGroup);
    visit("source", pushed.source, kSource);
    visit("tag", pushed.tag, kTag);
    visit("length", pushed.length, kLength);
    visit("id", pushed.id, kId);
  }
};

} // namespace dlslime::wire
