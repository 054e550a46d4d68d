#pragma once

#include <cstdint>

#include "engine/two_sided/counters.h"
#include "engine/two_sided/matcher.h"

namespace dlslime {

// A group as the receiver's half of the protocol sees it. Under the engine's
// lock.
class ReceivingGroup {
 public:
  virtual ~ReceivingGroup() = default;
  virtual uint32_t id() const = 0;
  virtual int rank() const = 0;
  virtual Matcher& matcher() = 0;
  // The id of this group in the process of that rank.
  virtual uint32_t remoteId(int rank) = 0;
  virtual Counters& counters(int rank) = 0;
  // The next message of this source and tag may be for a posted receive: says
  // so to the source, where the route can write into its memory.
  virtual void makeReady(int source, uint32_t tag) = 0;

  void countReceived(int source, uint64_t bytes) {
    auto& of = counters(source);
    ++of.receivedMessages;
    of.receivedBytes += bytes;
  }
};

} // namespace dlslime
