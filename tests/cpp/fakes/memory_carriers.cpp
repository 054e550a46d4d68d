#include "fakes/memory_carriers.h"

#include <cstring>

#include "base/status.h"

namespace dlslime::testing {

namespace {
// Gloo's time-out, in the time scale of tests.
constexpr milliseconds kMakeTime{60000};

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::kTransportFailed, what);
}

class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) {
    ++count_;
  }
  ~Counted() {
    --count_;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};
} // namespace

class MemoryCarriers::End final : public gloo::Carrier {
 public:
  End(std::shared_ptr<MemoryCarriers> owner,
      std::shared_ptr<Pipe> pipe,
      int end)
      : owner_(std::move(owner)), pipe_(std::move(pipe)), end_(end) {
    ++owner_->live_;
  }
  ~End() override {
    abort();
    --owner_->live_;
  }
  void send(const std::byte* data, size_t size) override {
    const std::lock_guard<std::mutex> guard(pipe_->mutex);
    const auto limit = owner_->faults_.breakAfterSends;
    if (limit != 0 && ++pipe_->sends > limit) {
      end("broken on purpose");
    }
    if (pipe_->ended != nullptr) {
      fail(pipe_->ended);
    }
    pipe_->to[1 - end_].emplace_back(data, data + size);
    pipe_->changed.notify_all();
  }
  void receive(std::byte* data, size_t size) override {
    std::unique_lock<std::mutex> lock(pipe_->mutex);
    auto& sent = pipe_->to[end_];
    pipe_->changed.wait(lock, [&] {
      return pipe_->ended != nullptr || (!owner_->stalled_ && !sent.empty());
    });
    if (aborted_ || sent.empty()) {
      fail(pipe_->ended);
    }
    if (sent.front().size() != size) {
      fail("a message of another size");
    }
    std::memcpy(data, sent.front().data(), size);
    sent.pop_front();
  }
  void abort() noexcept override {
    const std::lock_guard<std::mutex> guard(pipe_->mutex);
    aborted_ = true;
    // The peer gets all bytes sent before, and then the end.
    end("the carrier was closed");
  }

 private:
  // Call with the pipe's mutex held; only the first reason counts.
  void end(const char* why) noexcept {
    if (pipe_->ended == nullptr) {
      pipe_->ended = why;
    }
    pipe_->changed.notify_all();
  }

  const std::shared_ptr<MemoryCarriers> owner_;
  const std::shared_ptr<Pipe> pipe_;
  const int end_;
  bool aborted_ = false; // guarded by pipe_->mutex
};

std::unique_ptr<gloo::Carrier> MemoryCarriers::make(
    const std::string& nonce,
    int end,
    const OpenSideSocket& /*side*/) {
  const Counted counted(making_);
  if (end == faults_.failingMake) {
    fail("no carrier on purpose");
  }
  std::shared_ptr<Pipe> pipe;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    auto& slot = pipes_[nonce];
    if (!slot) {
      slot = std::make_shared<Pipe>();
    }
    pipe = slot;
  }
  std::unique_lock<std::mutex> lock(pipe->mutex);
  pipe->present[end] = end != faults_.hangingMake;
  pipe->changed.notify_all();
  const auto deadline = deadlineAfter(kMakeTime);
  while (!(pipe->present[0] && pipe->present[1])) {
    if (released_ || Clock::now() > deadline) {
      fail("the other end did not come");
    }
    pipe->changed.wait_for(lock, milliseconds(10));
  }
  ++made_;
  return std::make_unique<End>(shared_from_this(), pipe, end);
}

void MemoryCarriers::release() {
  released_ = true;
}

} // namespace dlslime::testing
