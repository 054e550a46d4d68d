#pragma once

#include "engine/wire/fields.h"

// Memory of GPUs shared between processes of a host (docs/protocol.md, "Memory
// of GPUs"). `allocation` is the number given to the allocation by the owner.

namespace dlslime::wire {

// Shares an allocation of the sending process; the payload tells how to map the
// allocation.
struct Share {
  static constexpr auto kType = MessageType::kShare;
  uint64_t allocation = 0;

  template <typename Message, typename Visit>
  static void fields(Message& share, const Visit& visit) {
    visit("allocation", share.allocation, kId);
  }
};

// Says that an allocation of the sending process is not shared any more.
struct Unshare {
  static constexpr auto kType = MessageType::kUnshare;
  uint64_t allocation = 0;

  template <typename Message, typename Visit>
  static void fields(Message& unshare, const Visit& visit) {
    visit("allocation", unshare.allocation, kId);
  }
};

// Asks for a new Share of an allocation of the receiving process, because the
// description in the last Share has expired, or, with `handOver`, because the
// sending process can't copy the descriptor by itself.
struct Reshare {
  static constexpr auto kType = MessageType::kReshare;
  uint64_t allocation = 0;
  bool handOver = false;

  template <typename Message, typename Visit>
  static void fields(Message& reshare, const Visit& visit) {
    visit("allocation", reshare.allocation, kId);
    visit("hand over", reshare.handOver, kStatus);
  }
};

} // namespace dlslime::wire
