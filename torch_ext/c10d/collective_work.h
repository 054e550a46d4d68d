#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "torch_ext/c10d/collectives.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// How one collective ends for the caller: with Gloo's end, or before it.
class CollectiveEnd {
 public:
  // The first one counts. Null: well.
  void end(std::exception_ptr error);
  bool ended() const;
  // Null: well, or not yet.
  std::exception_ptr error() const;
  // False: not by then.
  bool await(TimePoint until);
  // After the end: the future is done when this returns.
  void awaitFuture();
  // Completed on a thread of callbacks, with the value of Gloo's, or else with
  // an empty list.
  c10::intrusive_ptr<c10::ivalue::Future> future();
  // Gloo's future.
  void follow(c10::intrusive_ptr<c10::ivalue::Future> inner);
  // The value of Gloo's future; null: there is none, or not yet.
  std::optional<c10::IValue> value() const;

 private:
  void completeLocked();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  bool ended_ = false;
  std::exception_ptr error_;
  uint64_t ticket_ = 0; // 0: nothing was posted
  c10::intrusive_ptr<c10::ivalue::Future> future_, inner_;
};

// A group's collectives that Gloo has not ended. Any thread.
class LiveCollectives {
 public:
  void add(std::weak_ptr<CollectiveEnd> end);
  // Gloo has ended this one. Its caller hears of it last, since it may drop the
  // group at once, whose Gloo is only kept while any is busy.
  void over(CollectiveEnd& end, std::exception_ptr error) {
    count_.fetch_sub(1);
    end.end(std::move(error));
  }
  bool busy() const {
    return count_.load() != 0;
  }
  // All end with this, for their callers.
  void endAll(const Status& why);

 private:
  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::vector<std::weak_ptr<CollectiveEnd>> ends_; // guarded by mutex_
};

// A collective of CPU tensors, which promises what sends and receives do: a
// waiting main thread runs the handlers of signals, an abort ends it at once,
// and time-outs and texts are ours. Gloo's own work knows none of that, and
// there is none before the group's first collective has met the other ranks.
class CollectiveWork final : public c10d::Work {
 public:
  struct Setup {
    std::shared_ptr<GroupHandle> handle;
    std::shared_ptr<LiveCollectives> live;
    std::weak_ptr<Collectives> collectives; // a kept work keeps no Gloo group
    c10d::OpType type;
    uint64_t sequence; // among the group's collectives
    std::chrono::milliseconds limit;
  };
  explicit CollectiveWork(Setup setup);

  // Has `call` begin Gloo's work, in what is left of the time; or ends with the
  // problem. See Collectives::Begin.
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(
      std::optional<std::chrono::milliseconds> left)>;
  bool begin(const std::exception_ptr& problem, const Call& call);
  // Ends one that still waits for its turn when its time is over: asked again
  // and again, since its caller may look at nothing but its future.
  void endIfLate();
  // What Gloo has thrown at the call; null: nothing so far.
  std::exception_ptr refusal() const;

  bool isCompleted() override {
    endIfLate();
    return end_->ended();
  }
  bool isSuccess() const override {
    return end_->ended() && !end_->error();
  }
  std::exception_ptr exception() const override;
  // As Gloo's: of what has ended well, and has no list of lists.
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  void blockCurrentStream() override {
    wait(kNoTimeout);
  }
  // kNoTimeout: until Gloo's own, which is that of the collective. One that is
  // late goes on, and may be waited for again.
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

  // Gloo's work is not kept: it would keep Gloo's sockets and threads.
  void follow(const InnerPtr& inner) const;
  void awaitEnd(const InnerPtr& inner) const;
  std::string describe() const;
  std::string failures() const;
  void await(TimePoint deadline);

  const Setup setup_;
  const TimePoint begun_ = Clock::now();
  const TimePoint deadline_;
  const std::shared_ptr<CollectiveEnd> end_ = std::make_shared<CollectiveEnd>();
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::exception_ptr refusal_;
  bool decided_ = false; // begun, or never to be
};

} // namespace dlslime
