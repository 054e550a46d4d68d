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

// Tells one event loop of what has ended: a descriptor to watch, and the
// numbers under which watch() was asked. Any thread.
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

// Something that was posted past torch's interface, as Python sees it. Any
// number of threads may wait for it, or nobody.
class Pending {
 public:
  Pending(
      std::shared_ptr<GroupHandle> handle,
      OperationPtr operation,
      std::shared_ptr<Bytes> bytes = nullptr)
      : handle_(std::move(handle)),
        operation_(std::move(operation)),
        bytes_(std::move(bytes)) {}

  // Looks for news as well, so that polling alone is enough to make progress.
  bool done() const;
  // See waitOrTakeBack().
  void wait(milliseconds limit) const {
    waitOrTakeBack(*handle_, operation_, limit);
  }
  // Keeps the calling thread's current stream back until it is over; as wait(),
  // but for the host.
  void holdCurrentStream() const;
  milliseconds usualLimit() const {
    return handle_->timeout.load();
  }
  // It ends, early or well, and soon.
  void cancel() const;
  const Operation& operation() const {
    return *operation_;
  }
  // What has come, of a note.
  ByteSpan bytes() const;
  void watch(const std::shared_ptr<Notifier>& notifier, uint64_t number) const;

 private:
  const std::shared_ptr<GroupHandle> handle_;
  const OperationPtr operation_;
  const std::shared_ptr<Bytes> bytes_;
};

} // namespace dlslime
