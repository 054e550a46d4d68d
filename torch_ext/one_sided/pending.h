#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// Tells an event loop which operations have ended, by a descriptor to watch and
// the numbers given to watch(). Any thread.
class Notifier {
 public:
  Notifier();
  int fd() const {
    return event_.get();
  }
  void push(uint64_t number);
  std::vector<uint64_t> take();

 private:
  UniqueFd event_;
  std::mutex mutex_;
  std::vector<uint64_t> ended_; // guarded by mutex_
};

// An operation posted outside of torch's interface, as Python sees it. Any
// number of threads may wait, or none.
class Pending {
 public:
  Pending(
      std::shared_ptr<GroupHandle> handle,
      OperationPtr operation,
      std::shared_ptr<Bytes> bytes = nullptr)
      : handle_(std::move(handle)),
        operation_(std::move(operation)),
        bytes_(std::move(bytes)) {}

  // Looks for news, because polling alone must be enough to make progress.
  bool done() const;
  // Waits by waitOrTakeBack().
  void wait(milliseconds limit) const {
    waitOrTakeBack(*handle_, operation_, limit);
  }
  // Keeps the calling thread's current stream back until the operation is over;
  // like wait(), but the host goes on.
  void holdCurrentStream() const;
  milliseconds usualLimit() const {
    return handle_->timeout.load();
  }
  // Ends the operation soon: cancelled, or successfully if too late to cancel.
  void cancel() const;
  const Operation& operation() const {
    return *operation_;
  }
  // Returns the content of a received note.
  ByteSpan bytes() const;
  void watch(const std::shared_ptr<Notifier>& notifier, uint64_t number) const;

 private:
  const std::shared_ptr<GroupHandle> handle_;
  const OperationPtr operation_;
  const std::shared_ptr<Bytes> bytes_;
};

} // namespace dlslime
