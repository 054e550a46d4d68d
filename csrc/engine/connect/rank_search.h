#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/threads/mutex.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Finds the ranks that groups need: reads a rank's address record, has the
// handshakes connect to its process, and asks that process whether the rank is
// in the group. Wire-up thread, except for add().
class RankSearch {
 public:
  RankSearch(EngineState& state, Handshakes& handshakes)
      : state_(state), handshakes_(handshakes) {}

  // Begins to look for `ranks` of `group`. Any thread.
  void add(const std::shared_ptr<Group>& group, const std::vector<int>& ranks);
  // Takes each search on whose time has come.
  void advance();
  // Takes all searches on at the next advance().
  void lookAgain();
  TimePoint nextDeadline() const;

 private:
  static constexpr milliseconds kFirstPause{1};
  // Time after which the log tells of a rank not reached.
  static constexpr milliseconds kLateTime{10000};
  // Time to wait for further late ranks, to tell of them together.
  static constexpr milliseconds kTogetherTime{1000};
  static constexpr const char* kNotLooked = "it has not been looked for yet";
  // Unreached rank of a group.
  struct Task {
    std::weak_ptr<Group> group;
    int rank;
    TimePoint deadline; // the group's time-out
    TimePoint next{}; // time of the next look
    milliseconds pause = kFirstPause; // between looks; grows
    std::string problem = kNotLooked; // found by the last look
    bool asked = false; // an earlier look has sent a join
    Bytes deadRecord{}; // a record whose process did not answer
    TimePoint deadSince{}; // when the silence began
    Bytes tried{}; // record of the last try
    TimePoint retry{}; // time of the next try by the record
    // Pause after the next try by the record; grows, because a refusal may come
    // at once.
    milliseconds retryPause{};
    // The rank's process, and how many channels to the process had failed by
    // the last look; empty after a join was sent.
    std::optional<std::pair<Bytes, uint32_t>> failed{};
    std::string shortage{}; // the last failure for want of a resource
    // Time from which the log tells of the rank.
    TimePoint late = Clock::now() + kLateTime;
  };
  void collect();
  void tellLate();
  // Returns true when the task is over.
  bool advanceOne(Task& task);
  bool isOver(Task& task, const std::shared_ptr<Group>& group);
  bool look(Task& task, const std::shared_ptr<Group>& group);
  bool
  join(Task& task, Group& group, const ChannelKey& key, uint32_t remoteGroup);
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
  bool onFailureNote(
      Task& task,
      const std::shared_ptr<Group>& group,
      const Bytes& record,
      const FailureNote& note);
  static bool outlasts(Task& task, const Bytes& record, milliseconds most);
  bool diedInThisLife(const Group& group, const AddressRecord& record) const;
  static bool mayTry(Task& task, const Bytes& record);
  static std::string causeOf(const Task& task);
  void fail(Task& task, const std::shared_ptr<Group>& group, ErrorCode code);

  EngineState& state_;
  Handshakes& handshakes_;
  Mutex mutex_;
  std::vector<Task> added_ GUARDED_BY(mutex_);
  std::vector<Task> tasks_; // wire-up thread only
};

} // namespace dlslime
