#include "base/memory/word_read.h"

#include <sys/uio.h>

#include <cerrno>
#include <map>

namespace dlslime {

namespace {

// Time from which a read counts as late; a read takes microseconds unless the
// machine is overloaded.
constexpr milliseconds kLate{50};
// Most late reads of a process: the whole engine may have waited for each.
constexpr int kMostLate = 8;

// Processes with memory that kept a read from returning.
class SilentProcesses {
 public:
  void setSilent(uint32_t pid, bool silent) {
    const MutexLock lock(mutex_);
    processes_[pid].silent = silent;
  }
  void countLate(uint32_t pid) {
    const MutexLock lock(mutex_);
    ++processes_[pid].late;
  }
  bool contains(uint32_t pid) {
    const MutexLock lock(mutex_);
    const auto found = processes_.find(pid);
    return found != processes_.end() &&
        (found->second.silent || found->second.late >= kMostLate);
  }
  static SilentProcesses& all() {
    static auto* const one = new SilentProcesses; // a thread may outlive main()
    return *one;
  }

 private:
  struct Process {
    bool silent = false; // a read has not returned yet
    int late = 0;
  };
  Mutex mutex_;
  std::map<uint32_t, Process> processes_ GUARDED_BY(mutex_); // by pid
};

} // namespace

bool WordRead::allowed(uint32_t pid) {
  return !SilentProcesses::all().contains(pid);
}

void WordRead::run() {
  {
    const MutexLock lock(mutex_);
    begun_ = Clock::now();
    changed_.notifyAll();
  }
  uint64_t word = 0;
  const iovec here{&word, sizeof(word)};
  const iovec there{reinterpret_cast<void*>(address_), sizeof(word)};
  const auto got =
      process_vm_readv(static_cast<pid_t>(pid_), &here, 1, &there, 1, 0);
  const int error = got < 0 ? errno : 0;
  end({got == sizeof(word) ? word : 0, error});
}

// Sets the process free under the lock under which await() calls the process
// silent: else a read ending at that moment would leave it silent for ever.
void WordRead::end(const Result& result) {
  const MutexLock lock(mutex_);
  result_ = result;
  if (Clock::now() - *begun_ >= kLate) {
    SilentProcesses::all().countLate(pid_);
  }
  if (hangs_) {
    SilentProcesses::all().setSilent(pid_, false);
  }
  changed_.notifyAll();
}

std::optional<WordRead::Result> WordRead::await() {
  MutexLock lock(mutex_);
  while (!begun_) {
    changed_.wait(lock);
  }
  const auto deadline = *begun_ + kPatience;
  while (!result_ && changed_.waitUntil(lock, deadline)) {
  }
  hangs_ = !result_;
  if (hangs_) {
    SilentProcesses::all().setSilent(pid_, true);
  }
  return result_;
}

} // namespace dlslime
