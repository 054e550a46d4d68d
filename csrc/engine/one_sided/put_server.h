#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/gpu/peer_gpus.h"
#include "engine/one_sided/region.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/outbound.h"
#include "engine/wire/one_sided_messages.h"
#include "interface/bulk_payload.h"

namespace dlslime {

// Writes by one peer that come in messages, because the route can't move the
// bytes. Under the engine's lock.
class PutServer {
 public:
  PutServer(Outbound& out, PeerGpus& gpus) : out_(out), gpus_(gpus) {}

  void onPut(const wire::Put& put, const RegionPtr& region, ByteSpan payload)
      REQUIRES(kEngineLock);
  // Returns the destination of a payload of `size` bytes that starts with
  // `begin`, if the bytes may go there without a copy.
  Placement placementOf(
      const wire::Put& put,
      const Region& region,
      ByteSpan begin,
      size_t size) const REQUIRES(kEngineLock);
  // Notes the end of one Put: all bytes are in place unless there was a fault.
  // Answers the last Put of a write.
  void onEnded(const wire::Put& put, Fault fault) REQUIRES(kEngineLock);
  // Answers writes to GPUs with all copies ended. Returns true if any entry is
  // over; an entry of a failed write stays until the last Put.
  bool answerArrived() REQUIRES(kEngineLock);
  // Forgets the failed writes to a region.
  void forget(uint64_t region) REQUIRES(kEngineLock);
  // Forgets that too many writes have failed, because no region is lent.
  void forgetTooManyFailed() REQUIRES(kEngineLock) {
    tooManyFailed_ = false;
  }
  void clear() REQUIRES(kEngineLock);
  bool idle() const REQUIRES(kEngineLock) {
    return arriving_.empty();
  }

 private:
  // A write by the peer to memory of a GPU. Shared with the copies, which may
  // outlive the entry in arriving_.
  struct Arriving {
    size_t copies = 0; // under way
    bool failed = false;
    bool last = false; // all bytes have come
  };
  void write(
      const wire::Put& put,
      const RegionPtr& region,
      ByteSpan bytes,
      const std::vector<std::span<std::byte>>& places) REQUIRES(kEngineLock);
  void writePlainly(
      const wire::Put& put,
      ByteSpan bytes,
      const std::vector<std::span<std::byte>>& places) REQUIRES(kEngineLock);
  Fault failureOf(const wire::Put& put) const REQUIRES(kEngineLock);

  Outbound& out_;
  PeerGpus& gpus_;
  // Writes to GPUs, by the peer's id of the transfer.
  std::map<uint64_t, std::shared_ptr<Arriving>> arriving_;
  // Faults of writes to memory of processors with Puts still to come, by the id
  // of the region and the peer's id of the transfer.
  std::map<std::pair<uint64_t, uint64_t>, Fault> failedPuts_;
  // Not all failed writes are in failedPuts_, so any write may have failed.
  bool tooManyFailed_ = false;
};

} // namespace dlslime
