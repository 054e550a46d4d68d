#pragma once

#include <cstdint>
#include <string>

#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/matcher.h"
#include "interface/counters.h"

namespace dlslime {

// What the receiver's half of the protocol needs of a group. Under the engine's
// lock.
class ReceivingGroup {
 public:
  virtual ~ReceivingGroup() = default;
  virtual uint32_t id() const = 0;
  virtual int rank() const = 0;
  virtual std::string nameOf(int rank) const = 0; // for messages to users
  virtual Matcher& matcher() REQUIRES(kEngineLock) = 0;
  // Returns the id of this group in the process of the rank.
  virtual uint32_t remoteId(int rank) REQUIRES(kEngineLock) = 0;
  virtual Counters& counters(int rank) REQUIRES(kEngineLock) = 0;
  // Offers a posted receive to the source, if certain to get the next message
  // of the source and tag, and if the route can write into the memory.
  virtual void makeReady(int source, uint32_t tag) REQUIRES(kEngineLock) = 0;

  void countReceived(int source, uint64_t bytes) REQUIRES(kEngineLock) {
    auto& of = counters(source);
    ++of.receivedMessages;
    of.receivedBytes += bytes;
  }
};

} // namespace dlslime
