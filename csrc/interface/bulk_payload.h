#pragma once

#include <span>
#include <vector>

#include "base/memory/fault.h"
#include "interface/memory.h"
#include "interface/message.h"

// Payloads that system calls copy from and to registered memory.

namespace dlslime {

// Of one message: what one system call is given.
constexpr size_t kMostPlaces = 256;

// Where the payload of a message belongs, from its byte `from` on.
struct Placement {
  size_t from = 0;
  std::vector<std::span<std::byte>> places; // of all the rest
};

// For routes whose system calls read registered memory themselves, which saves
// the copies that guard against faults.
class Gatherer {
 public:
  virtual ~Gatherer() = default;

  virtual bool canGather(size_t payload) = 0; // there is room for so much
  // As Connection::send(), where there is room, of at most kMostPlaces whose
  // bytes need not be readable: the fault, and then nothing has been sent.
  virtual Fault sendGathered(
      const MessageHeader& header,
      std::span<const ByteSpan> places) = 0;
};

} // namespace dlslime
