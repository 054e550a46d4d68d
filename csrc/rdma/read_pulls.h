#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "core/transport.h"
#include "rdma/rail_memory.h"

namespace dlslime::rdma {

// Fetches announced messages by RDMA READ, in pieces: so that small messages
// posted meanwhile are not stuck behind a large one, and so that each rail gets
// as many as it can carry. A rail takes the next piece when one of its own has
// come, so a slower one, or a busier one, takes fewer.
class ReadPulls {
 public:
  void use(const std::vector<std::unique_ptr<Rail>>& rails);

  void start(
      uint64_t pullId,
      RemoteBuffer source,
      MemoryView destination,
      RailMemory::Regions regions);
  // A pull that ends with this status at the next poll.
  void refuse(uint64_t pullId, Status why);
  void abandon(uint64_t pullId, const Status& why);
  void abandonAll(const Status& why);
  // Posts what there is room for. Null, or the rail that is broken, and why.
  const Rail* post(std::string& why);
  // A piece of pull `number` has completed on this rail.
  void completed(const Rail& rail, uint32_t number, const Status& status);
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
    RailMemory::Regions regions;
    size_t posted = 0; // bytes
    size_t missing = SIZE_MAX; // where the first piece that failed begins
    uint32_t reading = 0; // pieces
    Status status;
    bool over() const {
      return reading == 0 && (!status.ok() || posted == destination.size);
    }
  };
  struct Piece {
    size_t offset, size;
  };
  struct Lane {
    Rail* rail = nullptr;
    std::deque<Piece> reading; // oldest first
    size_t bytes = 0; // of all of them
    double secondsFor(size_t more) const;
  };
  Lane* laneFor(const Pull& pull, size_t piece);
  bool postPiece(Pull& pull, Lane& lane, size_t size, int& error);

  std::vector<Lane> lanes_;
  std::vector<Pull> pulls_; // oldest first
  uint32_t nextNumber_ = 1;
};

} // namespace dlslime::rdma
