#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/connect/failback.h"
#include "engine/connect/failover.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Finds the ranks that groups need: connects to their addresses, and asks them
// whether they are in the group. One thread, which sleeps in poll() when there
// is nothing to find and nobody knocks.
class WireUp {
 public:
  explicit WireUp(EngineState& state);
  ~WireUp();
  void start();
  void stop(); // idempotent; joins

  // Any thread. `ranks` of `group` have come into use.
  void resolve(
      const std::shared_ptr<Group>& group,
      const std::vector<int>& ranks);
  const std::string& socketName() const {
    return handshakes_.socketName();
  }
  std::vector<std::string> addresses() const {
    return handshakes_.addresses();
  }

 private:
  // One rank of one group that is not reached yet.
  struct Task {
    std::weak_ptr<Group> group;
    int rank;
    TimePoint deadline; // the group's time-out
    TimePoint next; // when to look again
    milliseconds pause; // between looks; grows
    std::string problem; // what the last look found
    bool asked = false; // the process whether it is in the group
    Bytes deadRecord; // a record whose process did not answer,
    TimePoint deadSince; // and since when
    // The record that was tried last, when to try it again, and the pause after
    // that, which grows: a refusal may come at once.
    Bytes tried;
    TimePoint retry;
    milliseconds retryPause{};
    // Channels to the rank that had failed at the last look; it asks none.
    std::optional<std::pair<Bytes, uint32_t>> failed;
    std::string shortage{}; // what a process has lacked at the last such try
  };
  void run();
  void round();
  void collectTasks();
  // True: this task is over.
  bool advance(Task& task);
  bool isOver(Task& task, const std::shared_ptr<Group>& group);
  bool look(Task& task, const std::shared_ptr<Group>& group);
  bool
  join(Task& task, Group& group, const ChannelKey& key, uint32_t remoteGroup);
  void answerJoins();
  void countBroken(Task& task, Group& group, const ChannelKey& key);
  bool reach(
      Task& task,
      const std::shared_ptr<Group>& group,
      const AddressRecord& record,
      const Bytes& bytes);
  bool onFailure(
      Task& task,
      const std::shared_ptr<Group>& group,
      const Bytes& record,
      const Status& why,
      bool gone);
  bool diedInThisLife(const Group& group, const AddressRecord& record) const;
  static bool mayTry(Task& task, const Bytes& record);
  static std::string causeOf(const Task& task);
  void fail(Task& task, const std::shared_ptr<Group>& group, ErrorCode code);
  void sleep();
  void onDevices();
  void lookAgain();

  EngineState& state_;
  Handshakes handshakes_;
  Failover failover_;
  Failback failback_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::vector<Task> added_; // guarded by mutex_
  std::vector<Task> tasks_; // of the thread
  TimePoint looked_{}; // when it last looked at all descriptors
};

} // namespace dlslime
