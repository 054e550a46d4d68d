#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "fakes/world.h"

namespace dlslime::testing {

inline Config with(const std::function<void(Config&)>& change) {
  Config config;
  change(config);
  return config;
}

// Like World, for tests that need more: a config for each rank, several groups,
// options of groups, engines that end and start again.
class Cluster {
 public:
  using Options = std::function<void(GroupOptions&)>;

  Cluster(int size, std::function<Config(int)> config, Options options = {})
      : size_(size), config_(std::move(config)), options_(std::move(options)) {
    nodes_.resize(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      start(rank);
      node(rank).group = join(rank, "first");
    }
  }
  explicit Cluster(int size, const Config& config = {}, Options options = {})
      : Cluster(size, [config](int) { return config; }, std::move(options)) {}
  ~Cluster() {
    for (const auto& [engine, group] : joined_) {
      engine->abort(*group, Status(ErrorCode::kCancelled, "the test is over"));
    }
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  Node& operator[](int rank) {
    return node(rank);
  }
  int size() const {
    return size_;
  }
  // Starts a new engine; an earlier engine must have been stop()ped.
  void start(int rank) {
    node(rank).engine = std::make_shared<Engine>(config_(rank));
  }
  // Leaves all groups and ends the engine.
  void stop(int rank) {
    const auto engine = std::exchange(node(rank).engine, nullptr);
    node(rank).group = nullptr;
    std::erase_if(joined_, [&](const auto& entry) {
      if (entry.first == engine) {
        engine->leave(*entry.second);
      }
      return entry.first == engine;
    });
  }
  // Joins a group; each name has a store of its own.
  std::shared_ptr<Group> join(int rank, const std::string& name) {
    GroupOptions options;
    options.name = name;
    options.rank = rank;
    options.size = size_;
    options.rendezvous = rendezvous(name);
    if (options_) {
      options_(options);
    }
    auto group = node(rank).engine->join(options);
    joined_.emplace_back(node(rank).engine, group);
    return group;
  }
  void leave(int rank, std::shared_ptr<Group>& group) {
    node(rank).engine->leave(*group);
    std::erase_if(
        joined_, [&](const auto& entry) { return entry.second == group; });
    group.reset();
  }
  std::shared_ptr<MapRendezvous> rendezvous(const std::string& name) {
    auto& made = stores_[name];
    if (!made) {
      made = std::make_shared<MapRendezvous>();
    }
    return made;
  }
  // Passes a message between two ranks; fails unless the message arrives.
  ::testing::AssertionResult passes(
      int from,
      const std::shared_ptr<Group>& group,
      int to,
      const std::shared_ptr<Group>& other,
      size_t size = 100) {
    const auto send = makeSend(to, 77, pattern(size, unsigned(from)));
    const auto receive = makeReceive(from, 77, size);
    node(from).engine->send(*group, send);
    node(to).engine->receive(*other, receive);
    const auto deadline = deadlineAfter(milliseconds(10000));
    if (!node(to).engine->wait(*receive, deadline)) {
      return ::testing::AssertionFailure() << "it does not arrive";
    }
    if (!receive->status().ok()) {
      return ::testing::AssertionFailure() << receive->status().message();
    }
    if (!node(from).engine->wait(*send, deadline)) {
      return ::testing::AssertionFailure() << "its send does not end";
    }
    if (!send->status().ok() || receive->buffer() != send->buffer()) {
      return ::testing::AssertionFailure()
          << "arrived wrong: " << send->status().message();
    }
    return ::testing::AssertionSuccess();
  }
  ::testing::AssertionResult passes(int from, int to, size_t size = 100) {
    return passes(from, node(from).group, to, node(to).group, size);
  }

 private:
  Node& node(int rank) {
    return nodes_[static_cast<size_t>(rank)];
  }

  const int size_;
  const std::function<Config(int)> config_;
  const Options options_;
  std::map<std::string, std::shared_ptr<MapRendezvous>> stores_;
  std::vector<Node> nodes_;
  std::vector<std::pair<std::shared_ptr<Engine>, std::shared_ptr<Group>>>
      joined_;
};

} // namespace dlslime::testing
