#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <queue>
#include <vector>

#include "torch_ext/support/waiting.h"

namespace dlslime {

// Takes back what streams wait for and what has not ended in time: no thread
// waits for it, so that nobody else would. One for the process, with a thread
// of its own from its first use on.
class StreamWatchdog {
 public:
  static StreamWatchdog& instance();

  // `hold`: of a stream that waits for it, and is let go when it is done.
  // False: nobody would watch, since there is no thread for it.
  bool watch(
      const std::shared_ptr<GroupHandle>& handle,
      const OperationPtr& operation,
      const std::shared_ptr<Accelerator::StreamBlock>& hold,
      milliseconds limit);

 private:
  // Holds nothing: an operation that is over costs its place in the queue, and
  // that until those before it are over.
  struct Entry {
    TimePoint deadline;
    milliseconds limit;
    std::weak_ptr<GroupHandle> handle;
    std::weak_ptr<Operation> operation;
    std::weak_ptr<Accelerator::StreamBlock> hold;
    bool operator<(const Entry& other) const {
      return deadline > other.deadline; // the earliest on top
    }
    bool over() const;
  };
  // What has not ended in time.
  struct Late {
    milliseconds limit;
    std::shared_ptr<GroupHandle> handle;
    OperationPtr operation;
    std::shared_ptr<Accelerator::StreamBlock> hold;
  };
  bool start(); // under mutex_
  void run();
  void warn(const Entry& entry);
  void end(const Entry& entry);
  std::vector<Late> takeLate();
  static std::optional<Late> lateOf(const Entry& entry);
  static void letGo(const Late& late);
  static void takeBackApart(const std::vector<Late>& all);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<Entry> entries_; // guarded by mutex_
  bool started_ = false; // guarded by mutex_
  bool warned_ = false; // by its thread alone
};

} // namespace dlslime
