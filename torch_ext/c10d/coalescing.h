#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <mutex>
#include <vector>

namespace dlslime {

// Collects works for torch's coalescing manager, when the manager is given a
// device: collectives between start() and end() end as a single work. Each
// collective still begins when called. Any thread.
class Coalescing {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Forgets works left over by an exception inside an earlier manager.
  void start();
  void note(const WorkPtr& work);
  // Returns null if no collective has begun since start().
  WorkPtr end();

 private:
  std::mutex mutex_;
  // mutex_ guards all members below.
  bool started_ = false;
  std::vector<WorkPtr> works_;
  size_t pruneAt_ = 0;
};

} // namespace dlslime
