// A store that never answers, or fails, while a rank publishes itself.
#include "engine/bootstrap/bounded_store.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "fakes/world.h"

namespace dlslime::testing {
namespace {

class SilentStore final : public Rendezvous {
 public:
  void set(const std::string& key, const Bytes& value) override {
    pass();
    content_.set(key, value);
  }
  std::optional<Bytes> tryGet(const std::string& key) override {
    return content_.tryGet(key);
  }
  uint64_t increment(const std::string& key) override {
    pass();
    return content_.increment(key);
  }
  void answer(const std::string& error = "") {
    const std::lock_guard<std::mutex> guard(mutex_);
    answers_ = true;
    error_ = error;
    changed_.notify_all();
  }

 private:
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return answers_; });
    if (!error_.empty()) {
      throw Error(ErrorCode::kUnavailable, error_);
    }
  }

  MapRendezvous content_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool answers_ = false; // guarded by mutex_
  std::string error_; // guarded by mutex_
};

Status joined(
    Engine& engine,
    const std::shared_ptr<Rendezvous>& store,
    milliseconds limit = kAnHour) {
  GroupOptions options;
  options.name = "silent";
  options.timeout = limit;
  options.rendezvous = store;
  try {
    engine.leave(*engine.join(std::move(options)));
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

TEST(BoundedStore, StoreThatNeverAnswersIsATimeOutOfTheGroup) {
  Engine engine{Config{}};
  const auto store = std::make_shared<SilentStore>();
  const auto status = joined(engine, store, milliseconds(100));
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_NE(status.message().find("has not answered"), std::string::npos)
      << status.message();
  EXPECT_EQ(engine.groups(), 0U);
  store->answer(); // lets the waiting thread end
  EXPECT_TRUE(eventually([&] { return joined(engine, store).ok(); }));
}

TEST(BoundedStore, WhatTheStoreThrowsIsThrown) {
  Engine engine{Config{}};
  const auto store = std::make_shared<SilentStore>();
  store->answer("no space left on device");
  const auto status = joined(engine, store);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(status.message(), "no space left on device");
  EXPECT_EQ(engine.groups(), 0U);
}

TEST(BoundedStore, MapInMemoryIsAskedByTheCaller) {
  const auto store = std::make_shared<MapRendezvous>();
  const BoundedStore bounded(store, Clock::now());
  EXPECT_EQ(bounded.increment("a"), 1U);
  bounded.set("b", pattern(3));
  EXPECT_EQ(store->tryGet("b"), pattern(3));
}

} // namespace
} // namespace dlslime::testing
