#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <mutex>
#include <vector>

namespace dlslime {

// torch's coalescing manager where it is told of a device: what is begun
// between its two calls ends as one work. Each collective is begun at its own
// call all the same. Any thread.
class Coalescing {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Forgets what an exception inside an earlier manager has left.
  void start();
  void note(const WorkPtr& work);
  // Null: nothing has begun since start().
  WorkPtr end();

 private:
  std::mutex mutex_;
  // Guarded by mutex_:
  bool started_ = false;
  std::vector<WorkPtr> works_;
  size_t pruneAt_ = 0;
};

} // namespace dlslime
