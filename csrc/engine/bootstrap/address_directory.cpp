#include "engine/bootstrap/address_directory.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "base/threads/mutex.h"
#include "engine/progress/engine_thread.h"

namespace dlslime {

namespace {

// Limits of pauses between looks, for a needed record and for reading ahead.
constexpr milliseconds kFirstPause{1}, kLongestPause{50}, kLongestAhead{200};
// Pauses after errors are long, because torch logs each error of a store.
constexpr milliseconds kFirstErrorPause{100}, kLongestErrorPause{5000};
// A longer call counts as held up by a second thread in the store's client.
constexpr milliseconds kHeldUp{1000};
constexpr milliseconds kAheadTime{300000}; // limit of reading ahead
constexpr milliseconds kNew{30000}; // by then all but lost ranks have read
constexpr int kEveryone = -1; // as a rank: the note that all have read ahead

milliseconds doubled(milliseconds& pause, milliseconds most) {
  return std::exchange(pause, std::min(pause * 2, most));
}

} // namespace

// State shared by the directory and the reading threads. A single thread asks
// at a time; when a call is held up, a second thread takes over with a new
// connection to the store.
class AddressDirectory::Reader : public std::enable_shared_from_this<Reader> {
 public:
  Reader(
      std::shared_ptr<Rendezvous> rendezvous,
      int rank,
      int size,
      std::function<void()> wake)
      : rendezvous_(std::move(rendezvous)),
        rank_(rank),
        size_(size),
        wake_(std::move(wake)) {}

  void close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    changed_.notifyAll();
  }

  void readAhead() {
    if (!rendezvous_->blocks()) {
      return;
    }
    const MutexLock lock(mutex_);
    // At distances 1, -1, 2, -2, ... from the own rank.
    for (int step = 0; int(ahead_.size()) < std::min(size_ - 1, kMostAhead);) {
      step = step > 0 ? -step : 1 - step;
      ahead_.push_back(((rank_ + step) % size_ + size_) % size_);
    }
    if (!ahead_.empty()) {
      newUntil_ = size_ <= kMostAhead ? deadlineAfter(kNew) : TimePoint{};
      aheadUntil_ = deadlineAfter(kAheadTime);
      start();
    }
  }

  void awaitReaders(TimePoint deadline) {
    MutexLock lock(mutex_);
    deadline = std::min(deadline, newUntil_);
    auto& entry = entries_[kEveryone];
    if (entry.record || Clock::now() >= deadline) {
      return;
    }
    want(entry);
    while (!closed_ && !entry.record && entry.error.empty() &&
           changed_.waitUntil(lock, deadline)) {
    }
    entry.wanted = false;
  }

  Found find(int rank) {
    if (!rendezvous_->blocks()) {
      return {rendezvous_->tryGet(addressKey(rank)), kNoAddressText};
    }
    const MutexLock lock(mutex_);
    auto& entry = entries_[rank];
    if (!entry.record && !entry.wanted) {
      want(entry);
    }
    if (entry.wanted) {
      start(); // a retry, where no thread could be started before
      takeOverIfHeldUp();
    }
    return {entry.record, problemOf(entry), entry.lost()};
  }

  void refresh(int rank) {
    const MutexLock lock(mutex_);
    auto& entry = entries_[rank];
    if (rendezvous_->blocks() && !entry.wanted) {
      want(entry);
    }
  }

  void drop(int rank) {
    const MutexLock lock(mutex_);
    entries_[rank].wanted = false;
  }

 private:
  struct Entry {
    std::optional<Bytes> record;
    bool wanted = false;
    bool asked = false; // at least once since want()
    std::string error; // of the last look
    TimePoint failing{}; // time of the first of the looks that failed in a row
    bool lost() const {
      return !error.empty() && Clock::now() - failing >= kLostTime;
    }
    TimePoint next{}; // time of the next look
    milliseconds pause = kFirstPause, errorPause = kFirstErrorPause;
  };
  struct Job {
    std::optional<int> rank; // empty: all ranks in ahead_
    std::vector<std::string> keys;
  };

  static std::string keyOf(int rank) {
    return rank == kEveryone ? "read-by-all" : addressKey(rank);
  }

  void want(Entry& entry) REQUIRES(mutex_) {
    entry.wanted = true;
    entry.asked = false;
    entry.error.clear();
    entry.next = {};
    entry.pause = kFirstPause;
    start();
    changed_.notifyAll();
  }

  void start() REQUIRES(mutex_) {
    if (running_ == 0 && !closed_) {
      running_ = ++threads_;
      startThread([self = shared_from_this(), number = running_] {
        self->run(number, self->rendezvous_);
      });
      running_ = threadError_.empty() ? running_ : 0;
    }
  }

  void takeOverIfHeldUp() REQUIRES(mutex_) {
    if (asking_ && !helped_ && Clock::now() - askingSince_ > kHeldUp) {
      helped_ = true;
      startThread([self = shared_from_this(), number = ++threads_] {
        self->takeOver(number);
      });
    }
  }

  void startThread(std::function<void()> body) REQUIRES(mutex_) {
    threadError_.clear();
    try {
      std::thread([run = std::move(body)] {
        doInSpiteOfWantOfMemory("reading addresses", run);
      }).detach();
    } catch (const std::system_error& error) {
      threadError_ = error.what();
    }
  }

  std::string problemOf(const Entry& entry) const REQUIRES(mutex_) {
    if (!threadError_.empty()) {
      return "no thread can be started to read its address: " + threadError_;
    }
    if (!entry.error.empty()) {
      return "its address can't be read: " + entry.error;
    }
    if (asking_ && Clock::now() - askingSince_ > kHeldUp) {
      return "the group's store has not answered for " +
          std::to_string((Clock::now() - askingSince_) / milliseconds(1)) +
          " ms";
    }
    return entry.asked ? kNoAddressText
                       : "the store has not been asked for its address yet";
  }

  // Returns a due job; else sets `when` to the time of the next job, or to
  // never() when no work is left.
  std::optional<Job> nextJob(TimePoint& when) REQUIRES(mutex_) {
    const auto now = Clock::now();
    when = never();
    for (const auto& [rank, entry] : entries_) {
      if (entry.wanted && entry.next <= now) {
        return Job{rank, {keyOf(rank)}};
      }
      when = entry.wanted ? std::min(when, entry.next) : when;
    }
    ahead_.resize(now < aheadUntil_ ? ahead_.size() : 0);
    if (!ahead_.empty() && aheadNext_ <= now) {
      Job job;
      for (const int rank : ahead_) {
        job.keys.push_back(addressKey(rank));
      }
      return job;
    }
    when = ahead_.empty() ? when : std::min(when, aheadNext_);
    return std::nullopt;
  }

  void run(int number, const std::shared_ptr<Rendezvous>& rendezvous) {
    MutexLock lock(mutex_);
    while (!closed_ && running_ == number) {
      TimePoint when;
      const auto job = nextJob(when);
      if (!job && when == never()) {
        break;
      }
      if (!job) {
        changed_.waitUntil(lock, when);
        continue;
      }
      asking_ = true;
      askingSince_ = Clock::now();
      lock.unlock();
      std::string error;
      auto values = ask(*rendezvous, *job, error);
      lock.lock();
      if (running_ == number) {
        asking_ = helped_ = false;
      }
      note(*job, std::move(values), error);
    }
    running_ = running_ == number ? 0 : running_;
  }

  void takeOver(int number) {
    std::shared_ptr<Rendezvous> other;
    try {
      other = rendezvous_->another();
    } catch (const Error&) {
      return; // the first thread's call may still end
    }
    {
      const MutexLock lock(mutex_);
      if (!other || !asking_) {
        return;
      }
      running_ = number;
    }
    run(number, other);
  }

  std::optional<std::vector<Bytes>>
  ask(Rendezvous& rendezvous, const Job& job, std::string& error) const {
    std::optional<std::vector<Bytes>> values;
    try {
      values = rendezvous.tryGetAll(job.keys);
      // Keys may outlive an incarnation of the group; the next incarnation then
      // finds the note too early.
      if (values && !job.rank && size_ <= kMostAhead &&
          rendezvous.increment("readers") % uint64_t(size_) == 0) {
        rendezvous.set(keyOf(kEveryone), Bytes(1));
      }
    } catch (const Error& failed) {
      error = failed.what();
    }
    return values;
  }

  void note(
      const Job& job,
      std::optional<std::vector<Bytes>> values,
      const std::string& error) REQUIRES(mutex_) {
    const auto now = Clock::now();
    if (job.rank) {
      noteOne(entries_[*job.rank], std::move(values), error, now);
      changed_.notifyAll();
      return;
    }
    if (!values) {
      aheadNext_ = now +
          (error.empty() ? doubled(aheadPause_, kLongestAhead)
                         : doubled(aheadErrorPause_, kLongestErrorPause));
      return;
    }
    const auto ranks = std::exchange(ahead_, {});
    for (size_t i = 0; i < ranks.size(); ++i) {
      entries_[ranks[i]].record = std::move((*values)[i]);
    }
    tell();
  }

  void noteOne(
      Entry& entry,
      std::optional<std::vector<Bytes>> values,
      const std::string& error,
      TimePoint now) REQUIRES(mutex_) {
    entry.asked = true;
    entry.failing = entry.error.empty() ? now : entry.failing;
    entry.error = error;
    if (!values) {
      entry.next = now +
          (error.empty() ? doubled(entry.pause, kLongestPause)
                         : doubled(entry.errorPause, kLongestErrorPause));
      return;
    }
    entry.errorPause = kFirstErrorPause;
    auto& record = values->front();
    if (entry.record == record) { // still the record that leads nowhere
      entry.next = now + doubled(entry.pause, kLongestPause);
      return;
    }
    entry.record = std::move(record);
    entry.wanted = false;
    tell();
  }

  void tell() REQUIRES(mutex_) {
    if (!closed_) {
      wake_();
    }
  }

  const std::shared_ptr<Rendezvous> rendezvous_;
  const int rank_, size_;
  const std::function<void()> wake_;
  Mutex mutex_;
  Condition changed_;
  std::map<int, Entry> entries_ GUARDED_BY(mutex_);
  std::vector<int> ahead_ GUARDED_BY(mutex_);
  TimePoint aheadNext_ GUARDED_BY(mutex_){};
  TimePoint aheadUntil_ GUARDED_BY(mutex_){};
  TimePoint newUntil_ GUARDED_BY(mutex_){};
  milliseconds aheadPause_ GUARDED_BY(mutex_) = kFirstPause;
  milliseconds aheadErrorPause_ GUARDED_BY(mutex_) = kFirstErrorPause;
  int threads_ GUARDED_BY(mutex_) = 0; // started so far; numbers the threads
  int running_ GUARDED_BY(mutex_) = 0; // number of the asking thread; 0: none
  std::string threadError_ GUARDED_BY(mutex_); // why the last did not start
  bool helped_ GUARDED_BY(mutex_) = false; // a thread was started to take over
  bool asking_ GUARDED_BY(mutex_) = false; // thread running_ is in a call
  TimePoint askingSince_ GUARDED_BY(mutex_){}; // begin of the call under way
  bool closed_ GUARDED_BY(mutex_) = false;
};

AddressDirectory::AddressDirectory(
    std::shared_ptr<Rendezvous> rendezvous,
    int rank,
    int size,
    std::function<void()> wake)
    : reader_(std::make_shared<Reader>(
          std::move(rendezvous),
          rank,
          size,
          std::move(wake))) {}

void AddressDirectory::close() {
  if (!inForkedChild()) { // without threads, but perhaps with mutex_ locked
    reader_->close();
  }
}

void AddressDirectory::readAhead() {
  reader_->readAhead();
}

void AddressDirectory::awaitReaders(TimePoint deadline) {
  reader_->awaitReaders(deadline);
}

AddressDirectory::Found AddressDirectory::find(int rank) {
  return reader_->find(rank);
}

void AddressDirectory::refresh(int rank) {
  reader_->refresh(rank);
}

void AddressDirectory::drop(int rank) {
  reader_->drop(rank);
}

} // namespace dlslime
