#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace dlslime {

class Group;

// The groups of those who have come to a hub, until its owner takes them.
// Any thread.
class Guests {
 public:
  // False: too many wait already.
  bool add(std::shared_ptr<Group> group) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (groups_.size() >= kMost) {
      return false;
    }
    groups_.push_back(std::move(group));
    return true;
  }
  // Those of which this holds.
  template <typename Condition>
  std::vector<std::shared_ptr<Group>> takeIf(const Condition& condition) {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::vector<std::shared_ptr<Group>> taken;
    std::erase_if(groups_, [&](const auto& group) {
      const bool holds = condition(*group);
      if (holds) {
        taken.push_back(group);
      }
      return holds;
    });
    return taken;
  }
  std::vector<std::shared_ptr<Group>> take() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return std::exchange(groups_, {});
  }

 private:
  // Who knows the address may come as often as it likes.
  static constexpr size_t kMost = 4096;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Group>> groups_; // guarded by mutex_
};

} // namespace dlslime
