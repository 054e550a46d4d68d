#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>

#include "base/status.h"
#include "engine/bootstrap/map_rendezvous.h"

namespace dlslime::testing {

// A store that blocks and fails on order, as a foreign store may.
class ScriptedStore final : public Rendezvous {
 public:
  explicit ScriptedStore(
      std::shared_ptr<MapRendezvous> content =
          std::make_shared<MapRendezvous>())
      : content_(std::move(content)) {}
  ~ScriptedStore() override {
    release();
  }

  void set(const std::string& key, const Bytes& value) override {
    content_->set(key, value);
  }
  std::optional<Bytes> tryGet(const std::string& key) override {
    std::unique_lock<std::mutex> lock(mutex_);
    ++asked_;
    keys_.insert(key);
    changed_.wait(lock, [this] { return !held_; });
    if (!error_.empty()) {
      throw Error(ErrorCode::kUnavailable, error_);
    }
    return content_->tryGet(key);
  }
  uint64_t increment(const std::string& key) override {
    return content_->increment(key);
  }
  std::shared_ptr<Rendezvous> another() override {
    ++others_;
    return sharing_ ? std::make_shared<ScriptedStore>(content_) : nullptr;
  }

  // Blocks calls until release().
  void hold() {
    const std::lock_guard<std::mutex> guard(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard<std::mutex> guard(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  // Makes calls fail with the text; empty: calls succeed.
  void fail(const std::string& text) {
    const std::lock_guard<std::mutex> guard(mutex_);
    error_ = text;
  }
  // Makes another() return null: no second connection to the store.
  void refuseOthers() {
    sharing_ = false;
  }

  int asked() const { // calls of tryGet()
    return asked_;
  }
  int others() const {
    return others_;
  }
  std::set<std::string> keys() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return keys_;
  }

 private:
  const std::shared_ptr<MapRendezvous> content_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // The members below are guarded by mutex_.
  std::set<std::string> keys_;
  std::string error_;
  bool held_ = false;
  std::atomic<bool> sharing_{true};
  std::atomic<int> asked_{0}, others_{0};
};

} // namespace dlslime::testing
