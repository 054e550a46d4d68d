#pragma once

#include "interface/memory.h"
#include "interface/message.h"

// Each message has a static fields(message, visit) calling visit(name, member,
// place) for every member. Encoding, decoding and the check of docs/protocol.md
// (messages_test) are visits.

namespace dlslime::wire {

// Place of a field in a single member of the header.
template <auto Member>
struct Place {
  const char* name;

  template <typename Value>
  static void put(MessageHeader& header, const Value& value) {
    auto& there = header.*Member;
    there = static_cast<std::remove_reference_t<decltype(there)>>(value);
  }
  template <typename Value>
  static void get(const MessageHeader& header, Value& value) {
    value = static_cast<Value>(header.*Member);
  }
  // Calls visit(name) for each header member taken up by the field.
  template <typename Visit>
  void members(const Visit& visit) const {
    visit(name);
  }
};

inline constexpr Place<&MessageHeader::status> kStatus{"status"};
inline constexpr Place<&MessageHeader::slot> kSlot{"slot"};
inline constexpr Place<&MessageHeader::group> kGroup{"group"};
inline constexpr Place<&MessageHeader::source> kSource{"source"};
inline constexpr Place<&MessageHeader::tag> kTag{"tag"};
inline constexpr Place<&MessageHeader::length> kLength{"length"};
inline constexpr Place<&MessageHeader::id> kId{"id"};
inline constexpr Place<&MessageHeader::offset> kOffset{"offset"};
inline constexpr Place<&MessageHeader::address> kAddress{"address"};

// Place of memory with a key for each NIC; the second and the third key share
// `offset`.
struct MemoryPlace {
  static void put(MessageHeader& header, const RemoteBuffer& memory) {
    static_assert(RemoteBuffer::kMostKeys == 3);
    header.slot = memory.slot;
    header.address = memory.address;
    header.key = memory.keys[0];
    header.offset = uint64_t{memory.keys[2]} << 32 | memory.keys[1];
  }
  static void get(const MessageHeader& header, RemoteBuffer& memory) {
    memory = {
        header.address,
        {header.key,
         static_cast<uint32_t>(header.offset),
         static_cast<uint32_t>(header.offset >> 32)},
        header.slot};
  }
  template <typename Visit>
  static void members(const Visit& visit) {
    for (const char* const name : {"slot", "offset", "address", "key"}) {
      visit(name);
    }
  }
};
inline constexpr MemoryPlace kMemory;

// Place of memory with a single key; `offset` stays free for a further field.
struct PushedMemoryPlace {
  static void put(MessageHeader& header, const RemoteBuffer& memory) {
    header.slot = memory.slot;
    header.address = memory.address;
    header.key = memory.keys[0];
  }
  static void get(const MessageHeader& header, RemoteBuffer& memory) {
    memory = {header.address, {header.key}, header.slot};
  }
  template <typename Visit>
  static void members(const Visit& visit) {
    for (const char* const name : {"slot", "address", "key"}) {
      visit(name);
    }
  }
};
inline constexpr PushedMemoryPlace kPushedMemory;

template <typename Message>
MessageHeader encode(const Message& message) {
  MessageHeader header;
  header.type = Message::kType;
  Message::fields(
      message, [&header](const char*, const auto& value, auto place) {
        place.put(header, value);
      });
  return header;
}

// Replaces the message in the header, but keeps the sequence number.
template <typename Message>
void rewrite(MessageHeader& header, const Message& message) {
  const auto sequence = header.sequence;
  header = encode(message);
  header.sequence = sequence;
}

// Returns the message in a header of type Message::kType. Decodes any bytes:
// the protocol has to check the values.
template <typename Message>
Message decode(const MessageHeader& header) {
  Message message;
  Message::fields(message, [&header](const char*, auto& value, auto place) {
    place.get(header, value);
  });
  return message;
}

} // namespace dlslime::wire
