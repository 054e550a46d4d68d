#pragma once

#include <deque>

#include "interface/transport.h"

namespace dlslime {

// One-sided transfers that processors do, as CopyJobs, for routes where this
// process can get at the peer's memory itself. Under the engine's lock.
class PieceCopies {
 public:
  using Run = int (*)(const CopyJob& job);
  struct Ways {
    Run read = nullptr, write = nullptr;
    int pid = 0; // the peer's
  };
  explicit PieceCopies(Ways ways) : ways_(ways) {}

  void start(const TransferWork& work);
  void stop(uint64_t id);
  void stopAll();
  // Jobs of all transfers in turn, so that a small one need not wait for a
  // large one before it.
  bool claim(CopyJob& job);
  void finish(const CopyJob& job);
  // Tells which have ended. True if any has.
  bool report(ConnectionEvents& events);
  bool empty() const {
    return transfers_.empty();
  }

 private:
  struct Transfer {
    TransferWork work;
    uint64_t number = 0;
    size_t piece = 0; // the next one,
    size_t offset = 0; // and how much of it is claimed
    uint32_t running = 0; // jobs
    Status status;
    bool claimed() const {
      return piece == work.pieces.size();
    }
    bool over() const {
      return running == 0 && (claimed() || !status.ok());
    }
  };
  static void take(Transfer& transfer, CopyJob& job);

  const Ways ways_;
  std::deque<Transfer> transfers_;
  size_t turn_ = 0;
  uint64_t nextNumber_ = 1;
};

} // namespace dlslime
