#pragma once

#include <deque>

#include "interface/transport.h"

namespace dlslime {

// One-sided transfers copied by processors, as CopyJobs, for routes giving the
// process direct access to the peer's memory. Under the engine's lock.
class PieceCopies {
 public:
  using Run = int (*)(const CopyJob& job);
  struct Ways {
    Run read = nullptr, write = nullptr;
    int pid = 0; // process id of the peer
  };
  explicit PieceCopies(Ways ways) : ways_(ways) {}

  void start(const TransferWork& work);
  void stop(uint64_t id);
  void stopAll();
  // Claims jobs of all transfers in turn, so that a small transfer need not
  // wait for a large transfer started earlier. Returns false if no job is left.
  bool claim(CopyJob& job);
  void finish(const CopyJob& job);
  // Reports all ended transfers to `events`. Returns true if any had ended.
  bool report(ConnectionEvents& events);
  bool empty() const {
    return transfers_.empty();
  }

 private:
  struct Transfer {
    TransferWork work;
    uint64_t number = 0;
    size_t piece = 0; // index of the next piece to claim
    size_t offset = 0; // bytes claimed of the next piece
    uint32_t running = 0; // jobs claimed and not finished
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
