#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "interface/transport.h"
#include "transports/rdma/rail_memory.h"

namespace dlslime::rdma {

// Moves what is large, or many pieces, by RDMA READ and WRITE: announced
// messages and one-sided transfers. It goes in parts, so that small messages
// posted meanwhile are not stuck behind a large one, and so that each rail gets
// as many as it can carry. A rail takes the next part when one of its own is
// through, so a slower one, or a busier one, takes fewer.
//
// A write is over when a message that is sent then can't come before its bytes.
// By the rail of messages it can't anyway; the end of a write by another one
// says that the peer's NIC has it, from where it may still be on its way to
// memory. A read by that rail pushes it there.
class Bulk {
 public:
  void use(const std::vector<std::unique_ptr<Rail>>& rails);

  void startPull(
      uint64_t pullId,
      RemoteBuffer source,
      MemoryView destination,
      RailMemory::Regions regions);
  void startTransfer(const TransferWork& work, RailMemory::Regions regions);
  enum class Kind : uint8_t { kPull, kTransfer };
  // It ends with this status, at the next poll after its last part.
  void abandon(Kind kind, uint64_t id, const Status& why);
  void abandonAll(const Status& why);
  // Posts what there is room for. Null, or the rail that is broken, and why.
  const Rail* post(std::string& why);
  // The oldest part on this rail has completed.
  void completed(const Rail& rail, const Status& status);
  // The rail's device has not taken the last `count` parts, nor tells of them.
  void refused(const Rail& rail, uint32_t count, const Status& status);
  // Reports what has ended. True if anything has.
  bool report(ConnectionEvents& events);
  bool empty() const {
    return jobs_.empty();
  }

 private:
  struct Job {
    uint32_t number = 0;
    Kind kind = Kind::kPull;
    uint64_t id = 0;
    bool write = false;
    Piece whole; // a pull's only piece
    std::span<const Piece> pieces; // of a transfer
    RemoteBuffer there;
    RailMemory::Regions regions;
    size_t piece = 0; // the next one to post,
    size_t offset = 0; // and how much of it has been
    size_t missing = SIZE_MAX; // pull: where the first part that failed begins
    uint32_t running = 0; // parts
    uint32_t unflushed = 0; // by lane: it wrote, and nothing was read since
    uint64_t probe = 0; // an address that was written
    Status status;

    const Piece& next() const {
      return kind == Kind::kPull ? whole : pieces[piece];
    }
    bool posted() const {
      return piece == (kind == Kind::kPull ? 1 : pieces.size());
    }
    bool over() const {
      return running == 0 && (!status.ok() || (posted() && unflushed == 0));
    }
  };
  struct Part {
    uint32_t job;
    size_t offset, size;
  };
  struct Lane {
    Rail* rail = nullptr;
    std::deque<Part> running; // oldest first
    size_t bytes = 0; // of all of them
    double secondsFor(size_t more) const;
  };
  bool usable(const Job& job, const Lane& lane) const;
  bool full(const Lane& lane, size_t more) const;
  Lane* laneFor(const Job& job, size_t size);
  bool postPart(Job& job, Lane& lane, size_t size, int& error);
  void end(const Part& part, const Status& status);
  const Rail* postJob(Job& job, std::string& why);
  const Rail* postFlushes(Job& job, std::string& why);

  std::vector<Lane> lanes_;
  std::deque<Job> jobs_; // oldest first
  uint32_t nextNumber_ = 1;
};

} // namespace dlslime::rdma
