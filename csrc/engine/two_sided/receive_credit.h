#pragma once

#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/outbound.h"

namespace dlslime {

// Bounds the memory that a peer's messages take up while their receives are not
// posted yet, and tells the peer when memory is free again. Under the engine's
// lock.
class ReceiveCredit {
 public:
  ReceiveCredit(Outbound& out, const Outbound::Limits& limits);

  // admitEager() and admitRts() count a message. Not ok: the peer has sent more
  // than the limit, against the rules.
  Status admitEager(size_t payload) REQUIRES(kEngineLock);
  Status admitRts() REQUIRES(kEngineLock);
  // Returns the eagerCost() of a message that has left this process's memory.
  void returnEager(uint64_t cost) REQUIRES(kEngineLock);
  // Tells the sender how the message of an Rts has ended.
  void finish(uint64_t id, FinishStatus status, uint64_t capacity = 0)
      REQUIRES(kEngineLock);

 private:
  Outbound& out_;
  const Outbound::Limits limits_;
  const uint64_t lump_; // bytes of credit returned at a time, at least
  uint64_t owed_ = 0; // bytes of credit to be returned with the next lump
  uint64_t unexpected_ = 0; // eagerCost() whose credit was not returned yet
  uint64_t announced_ = 0; // bookkeeping of Rts without a Finish yet, in bytes
};

} // namespace dlslime
