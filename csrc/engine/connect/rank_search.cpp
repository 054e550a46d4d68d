#include "engine/connect/rank_search.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/log_once.h"
#include "engine/state/engine_lock.h"
#include "engine/state/preparing.h"

namespace dlslime {

namespace {

constexpr milliseconds kLongestPause{50};
constexpr milliseconds kLongestRetryPause{500};
// Time after which a silent process counts as dead. Before, the process's
// record is most often of an earlier incarnation of the job, and about to be
// replaced: torchrun restarts all workers, which come up within seconds of each
// other.
constexpr milliseconds kDeadRecordTime{60000};
// Time after which a rank that has failed to begin counts as failed, since its
// program may try again. A note from before this process joined may be of an
// earlier incarnation, and is treated like a dead process.
constexpr milliseconds kFailureNoteTime{5000};
constexpr int64_t kClockSkew = 60; // seconds between the clocks of two hosts

// Returns when this process joined the group, in seconds since 1970.
int64_t joinedAt(const Group& group) {
  const nanoseconds ago(nowSinceBoot() - group.options().joined);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now - ago).count();
}

// Ranks not reached, by group and cause.
class LateRanks {
 public:
  void add(const Group& group, int rank, const std::string& cause) {
    auto& found = ranks_[{group.id(), LogOnce::withoutNumbers(cause)}];
    if (found.first.empty()) {
      found.first = group.nameOf(rank);
      found.cause = cause;
    } else {
      ++found.more;
    }
  }
  void tell(milliseconds since) const {
    const auto seconds = std::to_string(since / std::chrono::seconds(1));
    for (const auto& [alike, found] : ranks_) {
      logWarning(
          found.first + " has not been reached for " + seconds +
          " s: " + found.cause +
          (found.more == 0 ? ""
                           : ". The same holds for " +
                   std::to_string(found.more) + " more of the group's ranks"));
    }
  }

 private:
  struct Found {
    std::string first; // name of the first rank
    std::string cause; // of the first rank
    int more = 0;
  };
  std::map<std::pair<uint32_t, std::string>, Found> ranks_;
};

} // namespace

void RankSearch::advance() {
  state_.wireUpThread.claimThis("a function of the wire-up thread is called");
  collect();
  const auto now = Clock::now();
  std::erase_if(
      tasks_, [&](Task& task) { return task.next <= now && advanceOne(task); });
  tellLate();
}

// Tells once of the ranks not reached for kLateTime, of equal causes together.
// Ranks needed by calls in a row are late one after the other, so the first
// waits for the others for kTogetherTime.
void RankSearch::tellLate() {
  const auto now = Clock::now();
  const auto isDue = [now](const Task& task) {
    return task.late <= now - kTogetherTime;
  };
  if (std::none_of(tasks_.begin(), tasks_.end(), isDue)) {
    return;
  }
  LateRanks late;
  for (auto& task : tasks_) {
    const auto group = task.group.lock();
    if (group && task.late <= now && task.problem != kNotLooked) {
      task.late = never();
      late.add(*group, task.rank, causeOf(task));
    }
  }
  late.tell(kLateTime);
}

TimePoint RankSearch::nextDeadline() const {
  auto next = never();
  for (const auto& task : tasks_) {
    next = std::min(next, task.next);
  }
  return next;
}

void RankSearch::add(
    const std::shared_ptr<Group>& group,
    const std::vector<int>& ranks) {
  Task task{group, 0, deadlineAfter(group->options().timeout)};
  {
    const MutexLock lock(mutex_);
    for (const int rank : ranks) {
      task.rank = rank;
      added_.push_back(task);
    }
  }
  state_.wakeWireUp();
}

void RankSearch::collect() {
  const MutexLock lock(mutex_);
  std::move(added_.begin(), added_.end(), std::back_inserter(tasks_));
  added_.clear();
}

bool RankSearch::advanceOne(Task& task) {
  const auto group = task.group.lock();
  if (!group) {
    return true;
  }
  const bool over = isOver(task, group);
  if (over) {
    group->addresses().drop(task.rank);
  }
  return over;
}

bool RankSearch::isOver(Task& task, const std::shared_ptr<Group>& group) {
  {
    const EngineLock lock(state_);
    auto& link = group->link(task.rank);
    if (group->closed() || link.state == Group::LinkState::kReady ||
        link.state == Group::LinkState::kFailed) {
      return true;
    }
    link.problem = causeOf(task);
  }
  if (Clock::now() >= std::max(task.deadline, group->awaitedUntil())) {
    task.problem += " (time-out of the group)";
    fail(task, group, ErrorCode::kTimeout);
    return true;
  }
  task.next = Clock::now() + task.pause;
  task.pause = std::min(task.pause * 2, kLongestPause);
  return look(task, group);
}

bool RankSearch::look(Task& task, const std::shared_ptr<Group>& group) {
  const auto found = group->addresses().find(task.rank);
  if (!found.record) {
    task.problem = found.problem;
    if (found.lost) {
      fail(task, group, ErrorCode::kUnavailable);
    }
    return found.lost;
  }
  if (const auto note = failureNote(*found.record)) {
    return onFailureNote(task, group, *found.record, *note);
  }
  AddressRecord record;
  try {
    record = decodeAddress(*found.record);
  } catch (const Error& error) { // a wrong version does not go away
    const Status why(ErrorCode::kUnavailable, error.what());
    return onFailure(task, group, *found.record, why, false);
  }
  return reach(task, group, record, *found.record);
}

bool RankSearch::reach(
    Task& task,
    const std::shared_ptr<Group>& group,
    const AddressRecord& record,
    const Bytes& bytes) {
  const ChannelKey key{record.identity.instance, group->options().route};
  if (join(task, *group, key, record.group)) {
    task.failed.reset();
    return false; // over once the answer has come
  }
  countBroken(task, *group, key);
  if (handshakes_.busy(key)) {
    if (task.deadRecord.empty()) { // else the cause of the failure says more
      task.problem = handshakes_.progress(key);
    }
    return false;
  }
  const auto failure = handshakes_.failureFor(key, record.group);
  const bool gone = handshakes_.gone(key);
  if (!failure.ok() && gone && diedInThisLife(*group, record)) {
    task.problem = "its process has ended (" + failure.message() + ")";
    fail(task, group, ErrorCode::kPeerFailed);
    return true;
  }
  if (!failure.ok() && onFailure(task, group, bytes, failure, gone)) {
    return true;
  }
  if (!mayTry(task, bytes)) {
    return false;
  }
  handshakes_.begin(
      {key,
       record,
       group->options().fallback,
       group->options().carrierSource,
       task.rank,
       0,
       0});
  // Looks again at once: a channel to oneself exists already, and perhaps a
  // refusal.
  task.next = TimePoint{};
  return false;
}

// Returns false when the record was tried a moment ago.
bool RankSearch::mayTry(Task& task, const Bytes& record) {
  const auto now = Clock::now();
  if (task.tried != record) {
    task.tried = record;
    task.retryPause = kFirstPause;
  } else if (now < task.retry) {
    return false;
  }
  task.retry = now + task.retryPause;
  task.retryPause = std::min(task.retryPause * 2, kLongestRetryPause);
  return true;
}

// Asks the rank's process whether the rank is in the group. Returns false when
// no connection exists yet.
bool RankSearch::join(
    Task& task,
    Group& group,
    const ChannelKey& key,
    uint32_t remoteGroup) {
  for (;;) {
    EngineLock lock(state_);
    const auto channel = state_.channels.find(key);
    if (!channel) {
      return false;
    }
    const auto unprepared =
        findUnprepared(group, task.rank, channel->connection().registrar());
    if (unprepared.operations.empty()) {
      if (group.link(task.rank).state == Group::LinkState::kResolving) {
        task.problem = kNotJoinedText;
        if (std::exchange(task.asked, true)) {
          group.addresses().refresh(task.rank);
        }
      }
      Joins::send(group, task.rank, channel, remoteGroup);
      state_.epoll.kick(); // no descriptor signals messages to oneself
      return true;
    }
    lock.leave();
    prepareAll(state_, unprepared);
  }
}

// Counts a connection that broke before the join was sent like a connection
// that broke before the answer; else such connections would be made for ever.
void RankSearch::countBroken(Task& task, Group& group, const ChannelKey& key) {
  const EngineLock lock(state_);
  const auto failures = state_.channels.failures(key);
  const auto before =
      std::exchange(task.failed, {{key.instance, failures.count}});
  if (before && before->first == key.instance &&
      before->second < failures.count &&
      group.link(task.rank).state == Group::LinkState::kResolving) {
    group.joinBroke(task.rank, failures.last);
    group.addresses().refresh(task.rank);
  }
}

bool RankSearch::onFailure(
    Task& task,
    const std::shared_ptr<Group>& group,
    const Bytes& record,
    const Status& why,
    bool gone) {
  task.problem = why.message();
  if (why.code() == ErrorCode::kExhausted) {
    task.shortage = why.message();
  }
  if (why.code() == ErrorCode::kUnavailable) {
    fail(task, group, why.code());
    return true;
  }
  const bool left = why.code() == ErrorCode::kNotJoined;
  if (left && !group->options().oneLife) { // alive, and may still join
    task.deadRecord.clear();
    group->addresses().refresh(task.rank);
    return false;
  }
  const bool dead = outlasts(task, record, kDeadRecordTime);
  if (group->options().oneLife && (gone || left)) {
    task.problem = left ? "the other end has been closed" : task.problem;
    fail(task, group, ErrorCode::kPeerFailed);
    return true;
  }
  if (!dead) {
    group->addresses().refresh(task.rank);
    return false;
  }
  task.problem += ", and no newer address has appeared for " +
      std::to_string(kDeadRecordTime / std::chrono::seconds(1)) + " s";
  fail(task, group, ErrorCode::kPeerFailed);
  return true;
}

bool RankSearch::onFailureNote(
    Task& task,
    const std::shared_ptr<Group>& group,
    const Bytes& record,
    const FailureNote& note) {
  task.problem = "it could not begin: " + note.reason;
  const bool ofThisLife = note.seconds > joinedAt(*group) - kClockSkew;
  if (!outlasts(
          task, record, ofThisLife ? kFailureNoteTime : kDeadRecordTime)) {
    group->addresses().refresh(task.rank);
    return false;
  }
  fail(task, group, ErrorCode::kPeerFailed);
  return true;
}

// Returns whether the record leading nowhere has been the rank's newest for
// longer than `most`.
bool RankSearch::outlasts(Task& task, const Bytes& record, milliseconds most) {
  if (task.deadRecord != record) {
    task.deadRecord = record;
    task.deadSince = Clock::now();
  }
  return Clock::now() - task.deadSince >= most;
}

// Returns whether an ended process was of the current incarnation of the job. A
// record older than this process's own joining may be of an earlier
// incarnation, and about to be replaced; clocks of different hosts can't be
// compared.
bool RankSearch::diedInThisLife(const Group& group, const AddressRecord& record)
    const {
  return meetLocally(state_.self, record.identity) &&
      record.joined > group.options().joined;
}

void RankSearch::fail(
    Task& task,
    const std::shared_ptr<Group>& group,
    ErrorCode code) {
  const EngineLock lock(state_);
  group->failLink(
      task.rank,
      Status(
          code,
          group->nameOf(task.rank) + " can't be reached: " + causeOf(task)));
}

// Returns the problem, with an earlier shortage added: only the process short
// of a resource tells of the shortage, and only when asked, so later tries may
// find a vaguer problem.
std::string RankSearch::causeOf(const Task& task) {
  const bool told = task.shortage.empty() ||
      task.problem.find(task.shortage) != std::string::npos;
  return told ? task.problem
              : task.problem + " (an earlier try: " + task.shortage + ")";
}

void RankSearch::lookAgain() {
  for (auto& task : tasks_) {
    task.next = TimePoint{};
  }
}

} // namespace dlslime
