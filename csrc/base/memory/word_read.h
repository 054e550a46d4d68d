#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/threads/mutex.h"
#include "base/threads/thread_safety.h"

namespace dlslime {

// Read of a word in a peer's memory, for a thread of its own. The peer names
// the address, and may name memory that never becomes available: then the read
// does not return.
class WordRead {
 public:
  // Time that a read has, once begun. A thread of this process may begin late:
  // that is no fault of the peer's.
  static constexpr milliseconds kPatience{300};

  struct Result {
    uint64_t word = 0;
    int error = 0; // errno of the read
  };

  WordRead(uint32_t pid, uint64_t address) : pid_(pid), address_(address) {}

  // Returns whether a read of the process may begin: none does until a hanging
  // read has returned, and none ever after several late reads.
  static bool allowed(uint32_t pid);

  // Reads, and may never return.
  void run();
  // Returns nothing if the read has not returned in time; call once.
  std::optional<Result> await();

 private:
  void end(const Result& result);

  const uint32_t pid_;
  const uint64_t address_;
  Mutex mutex_;
  Condition changed_;
  std::optional<TimePoint> begun_ GUARDED_BY(mutex_);
  std::optional<Result> result_ GUARDED_BY(mutex_);
  bool hangs_ GUARDED_BY(mutex_) = false; // await() has returned nothing
};

} // namespace dlslime
