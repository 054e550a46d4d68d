#pragma once

#include <optional>
#include <queue>
#include <vector>

#include "base/threads/mutex.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// Times out operations that only a CUDA stream waits for. The process has a
// single watchdog, with a thread from the first use on.
class StreamWatchdog {
 public:
  static StreamWatchdog& instance();

  // Takes the operation back after `limit`. `hold` blocks a stream until the
  // operation is done. Returns false if no thread can be started to watch.
  bool watch(
      const std::shared_ptr<GroupHandle>& handle,
      const OperationPtr& operation,
      const std::shared_ptr<Accelerator::StreamBlock>& hold,
      milliseconds limit);

 private:
  // Keeps nothing alive: an operation that is over costs only the entry in the
  // queue, until earlier entries are over.
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
  // An operation that has not ended in time.
  struct Late {
    milliseconds limit;
    std::shared_ptr<GroupHandle> handle;
    OperationPtr operation;
    std::shared_ptr<Accelerator::StreamBlock> hold;
  };
  bool start() REQUIRES(mutex_);
  void run();
  void warn(const Entry& entry);
  void end(const Entry& entry);
  std::vector<Late> takeLate();
  static std::optional<Late> lateOf(const Entry& entry);
  static void letGo(const Late& late);
  static void takeBackApart(const std::vector<Late>& all);

  Mutex mutex_;
  Condition changed_;
  std::priority_queue<Entry> entries_ GUARDED_BY(mutex_);
  bool started_ GUARDED_BY(mutex_) = false;
  bool warned_ = false; // used by the watchdog's thread alone
};

} // namespace dlslime
