#include "torch_ext/c10d/coalescing.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace dlslime {

namespace {

constexpr size_t kPruneAt = 64;

// Several works in the form of a single work.
class CoalescedWork final : public c10d::Work {
 public:
  explicit CoalescedWork(std::vector<Coalescing::WorkPtr> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) {
      return work->isCompleted();
    });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) {
      return work->isSuccess();
    });
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (auto error = work->exception()) {
        return error;
      }
    }
    return nullptr;
  }
  void synchronize() override {
    for (const auto& work : works_) {
      work->synchronize();
    }
  }
  void blockCurrentStream() override {
    for (const auto& work : works_) {
      work->blockCurrentStream();
    }
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const auto begun = Clock::now();
    for (const auto& work : works_) {
      auto left = timeout;
      if (timeout != kNoTimeout) {
        left -= std::chrono::duration_cast<std::chrono::milliseconds>(
            Clock::now() - begun);
        left = std::max(left, std::chrono::milliseconds(1)); // 0: no limit
      }
      if (!work->wait(left)) {
        return false;
      }
    }
    return true;
  }
  void abort() override {
    for (const auto& work : works_) {
      work->abort();
    }
  }

 private:
  const std::vector<Coalescing::WorkPtr> works_;
};

} // namespace

void Coalescing::start() {
  std::vector<WorkPtr> left; // destroyed after the unlock
  const std::lock_guard<std::mutex> guard(mutex_);
  started_ = true;
  left.swap(works_);
  pruneAt_ = kPruneAt;
}

void Coalescing::note(const WorkPtr& work) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!started_) {
    return;
  }
  // Drops works that have succeeded: an exception inside the manager keeps
  // torch from calling end(), and the list would grow without bound.
  if (works_.size() >= pruneAt_) {
    const auto over =
        std::remove_if(works_.begin(), works_.end(), [](const auto& one) {
          return one->isCompleted() && one->isSuccess();
        });
    works_.erase(over, works_.end());
    pruneAt_ = std::max(kPruneAt, 2 * works_.size());
  }
  works_.push_back(work);
}

Coalescing::WorkPtr Coalescing::end() {
  const std::lock_guard<std::mutex> guard(mutex_);
  started_ = false;
  auto works = std::exchange(works_, {});
  if (works.size() <= 1) {
    return works.empty() ? nullptr : works.front();
  }
  return c10::make_intrusive<CoalescedWork>(std::move(works));
}

} // namespace dlslime
