#pragma once

#include <memory>
#include <vector>

#include "core/transport.h"
#include "rdma/registration_cache.h"
#include "rdma/send_queue.h"

namespace dlslime::rdma {

// Fetches announced messages by RDMA READ, in pieces, so that small messages
// posted meanwhile are not stuck behind a large one.
class ReadPulls {
 public:
  explicit ReadPulls(SendQueue& queue) : queue_(queue) {}

  void start(
      uint64_t pullId,
      RemoteBuffer source,
      MemoryView destination,
      MemoryRegionPtr region);
  // A pull that ends with this status at the next poll.
  void refuse(uint64_t pullId, Status why);
  void abandon(uint64_t pullId, const Status& why);
  void abandonAll(const Status& why);
  // Posts what there is room for. Not ok: the queue pair is broken.
  Status post();
  // A piece of pull `number` has completed.
  void completed(uint32_t number, const Status& status);
  // Reports what has ended. True if anything has.
  bool report(ConnectionEvents& events);
  bool empty() const {
    return pulls_.empty();
  }

 private:
  struct Pull {
    uint32_t number = 0;
    uint64_t pullId = 0;
    RemoteBuffer source;
    MemoryView destination;
    MemoryRegionPtr region;
    size_t posted = 0; // bytes
    uint32_t reading = 0; // pieces
    Status status;
    bool over() const {
      return reading == 0 && (!status.ok() || posted == destination.size);
    }
  };
  Status postPiece(Pull& pull);

  SendQueue& queue_;
  std::vector<Pull> pulls_; // oldest first
  uint32_t nextNumber_ = 1;
  uint32_t reading_ = 0; // pieces of all
};

} // namespace dlslime::rdma
