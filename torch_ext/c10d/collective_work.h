#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/threads/mutex.h"
#include "torch_ext/c10d/collectives.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// End of a collective for the caller: the end of Gloo's work, or an earlier end
// by an abort or a time-out.
class CollectiveEnd {
 public:
  // Ends the collective, successfully if `error` is null. Only the first call
  // counts.
  void end(std::exception_ptr error);
  bool ended() const;
  // Returns null if the collective has succeeded, or has not ended.
  std::exception_ptr error() const;
  // Returns false if the collective has not ended by `until`.
  bool await(TimePoint until);
  // Waits, after the end, until the future is completed. Returns early if
  // earlier callbacks run long.
  void awaitFuture();
  // Returns a future with the value of Gloo's future or else an empty list,
  // completed by a callback thread, or at once if the collective has ended.
  c10::intrusive_ptr<c10::ivalue::Future> future();
  // Makes `inner`, Gloo's future, the source of the value.
  void follow(c10::intrusive_ptr<c10::ivalue::Future> inner);
  // Returns the value of Gloo's future, or none if the future is missing,
  // pending or failed.
  std::optional<c10::IValue> value() const;

 private:
  void completeLocked() REQUIRES(mutex_);

  mutable Mutex mutex_;
  Condition changed_;
  bool ended_ GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  uint64_t ticket_ GUARDED_BY(mutex_) = 0; // 0: no completion was posted
  c10::intrusive_ptr<c10::ivalue::Future> future_ GUARDED_BY(mutex_);
  c10::intrusive_ptr<c10::ivalue::Future> inner_ GUARDED_BY(mutex_);
};

// Collectives of a group that Gloo has not ended. Any thread.
class LiveCollectives {
 public:
  void add(std::weak_ptr<CollectiveEnd> end);
  // Notes the end of Gloo's work. The count falls before the caller learns of
  // the end, because the caller may drop the group at once, and a group with a
  // live collective leaks Gloo's backend.
  void over(CollectiveEnd& end, std::exception_ptr error) {
    count_.fetch_sub(1);
    end.end(std::move(error));
  }
  bool busy() const {
    return count_.load() != 0;
  }
  // Ends all collectives with `why` for the callers. Gloo's works go on.
  void endAll(const Status& why);

 private:
  std::atomic<int> count_{0};
  Mutex mutex_;
  std::vector<std::weak_ptr<CollectiveEnd>> ends_ GUARDED_BY(mutex_);
};

// Work of a collective of CPU tensors, with the promises of sends and receives:
// a waiting main thread runs the handlers of signals, an abort takes effect at
// once, and time-outs and texts are dlslime's. Gloo's own work keeps none of
// these promises, and does not exist before the group's first collective has
// met all ranks.
class CollectiveWork final : public c10d::Work {
 public:
  struct Setup {
    std::shared_ptr<GroupHandle> handle;
    std::shared_ptr<LiveCollectives> live;
    std::weak_ptr<Collectives> collectives; // a kept work must not keep Gloo
    c10d::OpType type;
    uint64_t sequence; // number within the group
    std::chrono::milliseconds limit;
  };
  explicit CollectiveWork(Setup setup);

  // Begins Gloo's work. `left` is the rest of the time-out; none means the full
  // time-out.
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(
      std::optional<std::chrono::milliseconds> left)>;
  // Begins Gloo's work by `call`, or ends with `problem` if not null. Returns
  // as Collectives::Begin requires.
  bool begin(const std::exception_ptr& problem, const Call& call);
  // Times out a collective waiting for its turn. Called again and again,
  // because a caller may look only at the future.
  void endIfLate();
  // Returns the exception thrown by Gloo at the call, or null.
  std::exception_ptr refusal() const;

  bool isCompleted() override {
    endIfLate();
    return end_->ended();
  }
  bool isSuccess() const override {
    return end_->ended() && !end_->error();
  }
  std::exception_ptr exception() const override;
  // Returns tensors as Gloo's result() does. Throws if the collective has
  // failed or not ended, or if the value is a list of lists.
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  void blockCurrentStream() override {
    wait(kNoTimeout);
  }
  // With kNoTimeout, waits until the collective ends or times out. With a
  // time-out of the caller's, a late collective goes on, and the caller may
  // wait again.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return end_->future();
  }
  uint64_t getSequencenumber() const override {
    return setup_.sequence;
  }

 private:
  using InnerPtr = c10::intrusive_ptr<c10d::Work>;

  // Takes the end from Gloo's work, but does not keep the work: a work keeps
  // Gloo's sockets and threads.
  void follow(const InnerPtr& inner) const;
  void awaitEnd(const InnerPtr& inner) const;
  std::string describe() const;
  std::string failures() const;
  void await(TimePoint deadline);

  const Setup setup_;
  const TimePoint begun_ = Clock::now();
  const TimePoint deadline_;
  const std::shared_ptr<CollectiveEnd> end_ = std::make_shared<CollectiveEnd>();
  mutable Mutex mutex_;
  std::exception_ptr refusal_ GUARDED_BY(mutex_);
  bool decided_ GUARDED_BY(mutex_) = false; // has begun, or never will
};

} // namespace dlslime
