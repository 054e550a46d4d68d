#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "interface/transport.h"
#include "transports/rdma/rail_memory.h"

namespace dlslime::rdma {

// Moves rendezvous messages and one-sided transfers by RDMA READ and WRITE,
// over all rails of a connection. Data is split into parts, so that small
// messages posted meanwhile are not stuck behind a large transfer. A rail takes
// the next part when an earlier part has completed, so a slow or busy rail
// takes fewer.
//
// A write over the rail of messages ends with its completion, because a later
// message follows the bytes over that rail. The completion of a write over any
// other rail says only that the peer's NIC has the bytes; a message could still
// overtake them on the way to memory. Such a write ends after an RDMA READ over
// the written rail, which pushes the bytes to memory.
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
  // Ends the job with status `why`, reported once the parts in flight have
  // ended.
  void abandon(Kind kind, uint64_t id, const Status& why);
  void abandonAll(const Status& why);
  // Posts parts while the rails have room. Returns null, or the broken rail
  // with the reason in `why`.
  const Rail* post(std::string& why);
  // Ends the oldest part running on the rail, because a completion has arrived.
  void completed(const Rail& rail, const Status& status);
  // Ends the last `count` parts of the rail: the device has refused them and
  // will send no completions.
  void refused(const Rail& rail, uint32_t count, const Status& status);
  // Reports all ended jobs. Returns whether a job had ended.
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
    // The only piece of a pull.
    Piece whole;
    // Pieces of a transfer.
    std::span<const Piece> pieces;
    RemoteBuffer there;
    RailMemory::Regions regions;
    // Index of the next piece to post.
    size_t piece = 0;
    // Bytes of the next piece already posted.
    size_t offset = 0;
    // Of a pull: offset of the first failed part.
    size_t missing = SIZE_MAX;
    uint32_t running = 0; // parts in flight
    // Bit mask of the lanes written over since the last flushing READ. Lane 0,
    // the lane of messages, needs no READ.
    uint32_t unflushed = 0;
    // An address in the written memory, read by the flushing READ.
    uint64_t probe = 0;
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
    size_t bytes = 0; // of all running parts
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
