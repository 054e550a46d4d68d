#pragma once

#include <span>
#include <vector>

#include "base/memory/fault.h"
#include "interface/memory.h"
#include "interface/message.h"

// Payloads copied from and to registered memory by system calls.

namespace dlslime {

// Most places of a message, all given to a single system call.
constexpr size_t kMostPlaces = 256;

// Destination of a message's payload from byte `from` on.
struct Placement {
  size_t from = 0;
  std::vector<std::span<std::byte>> places; // of all bytes from `from` on
};

// Sender of a route with system calls that read registered memory directly,
// without a copy as a guard against faults.
class Gatherer {
 public:
  virtual ~Gatherer() = default;

  // Returns true if there is room for a payload of `payload` bytes.
  virtual bool canGather(size_t payload) = 0;
  // Sends as Connection::send() does, once canGather() has found room. Takes at
  // most kMostPlaces places, with bytes that need not be readable; returns the
  // fault of unreadable bytes, and then no message has been sent.
  virtual Fault sendGathered(
      const MessageHeader& header,
      std::span<const ByteSpan> places) = 0;
};

} // namespace dlslime
