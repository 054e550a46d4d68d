#pragma once

#include "engine/wire/fields.h"

// Messages by which connected processes join and leave groups
// (docs/protocol.md, "Joining"). `group` is the receiving process's number of
// the group, and `source` the sending process's rank in the group.

namespace dlslime::wire {

// Asks to join the receiving process's group.
struct Join {
  static constexpr auto kType = MessageType::kJoin;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t target = 0; // the receiving process's rank
  uint32_t joinersGroup = 0; // the sending process's number of the group
  uint64_t epoch = 0;

  template <typename Message, typename Visit>
  static void fields(Message& join, const Visit& visit) {
    visit("group", join.group, kGroup);
    visit("source", join.source, kSource);
    visit("target", join.target, kTag);
    visit("joinersGroup", join.joinersGroup, kId);
    visit("epoch", join.epoch, kOffset);
  }
};

// Accepts a Join: from now on both ends may send.
struct Joined {
  static constexpr auto kType = MessageType::kJoined;
  uint32_t group = 0;
  uint32_t source = 0;
  uint32_t joiner = 0; // the receiving process's rank
  uint32_t acceptedGroup = 0; // the sending process's number of the group

  template <typename Message, typename Visit>
  static void fields(Message& joined, const Visit& visit) {
    visit("group", joined.group, kGroup);
    visit("source", joined.source, kSource);
    visit("joiner", joined.joiner, kTag);
    visit("acceptedGroup", joined.acceptedGroup, kId);
  }
};

// Rejects a Join that fits no open group: the joiner has an outdated address
// record of the sending rank and must read the record again.
struct Stale {
  static constexpr auto kType = MessageType::kStale;
  uint32_t group = 0;
  uint32_t source = 0;

  template <typename Message, typename Visit>
  static void fields(Message& stale, const Visit& visit) {
    visit("group", stale.group, kGroup);
    visit("source", stale.source, kSource);
  }
};

// Says that the sending rank has left the group. Also answers a Join or Joined
// that comes too late.
struct Leave {
  static constexpr auto kType = MessageType::kLeave;
  uint32_t group = 0;
  uint32_t source = 0;
  bool aborted = false;

  template <typename Message, typename Visit>
  static void fields(Message& leave, const Visit& visit) {
    visit("group", leave.group, kGroup);
    visit("source", leave.source, kSource);
    visit("aborted", leave.aborted, kTag);
  }
};

// Reasons why a group refuses a Join.
enum class RefusalReason : uint32_t {
  kTaken = 1, // the endpoint already has a peer
  kTooManyGuests, // too many guests not yet accepted by the hub's owner
  kTooMuchUnread, // too many unread bytes of guests that have left the hub
  kTooManyOfOne, // too many endpoints of the joining process at the hub
};

struct Refused {
  static constexpr auto kType = MessageType::kRefused;
  uint32_t group = 0;
  uint32_t source = 0;
  RefusalReason reason{};
  uint64_t amount = 0; // guests, bytes or endpoints, by the reason

  template <typename Message, typename Visit>
  static void fields(Message& refused, const Visit& visit) {
    visit("group", refused.group, kGroup);
    visit("source", refused.source, kSource);
    visit("reason", refused.reason, kTag);
    visit("amount", refused.amount, kLength);
  }
};

} // namespace dlslime::wire
