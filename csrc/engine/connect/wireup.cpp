#include "engine/connect/wireup.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/progress/engine_thread.h"
#include "engine/state/engine_lock.h"
#include "engine/state/preparing.h"

namespace dlslime {

namespace {

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};
constexpr milliseconds kLongestRetryPause{500};
// A record whose process does not answer is most often one of an earlier life
// of the job, about to be replaced: torchrun restarts all workers, and they
// come up within seconds of each other. After this long it is a death.
constexpr milliseconds kDeadRecordTime{60000};

} // namespace

WireUp::WireUp(EngineState& state)
    : state_(state),
      handshakes_(state),
      failover_(state, handshakes_),
      failback_(state, handshakes_) {}

WireUp::~WireUp() {
  stop();
}

void WireUp::start() {
  thread_ = startEngineThread([this] { run(); });
}

void WireUp::stop() {
  stopping_.store(true);
  state_.wakeWireUp();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void WireUp::resolve(
    const std::shared_ptr<Group>& group,
    const std::vector<int>& ranks) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const int rank : ranks) {
      added_.push_back(
          {group,
           rank,
           deadlineAfter(group->options().timeout),
           Clock::now(),
           kFirstPause,
           "it has not been looked for yet",
           false,
           {},
           {},
           {},
           {},
           {},
           {}});
    }
  }
  state_.wakeWireUp();
}

void WireUp::collectTasks() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::move(added_.begin(), added_.end(), std::back_inserter(tasks_));
  added_.clear();
}

void WireUp::run() {
  while (!stopping_.load()) {
    surviveWantOfMemory("making connections", [this] { round(); });
  }
}

void WireUp::round() {
  collectTasks();
  state_.closer.advance();
  state_.registrationThread.standIn();
  answerJoins();
  failback_.advance();
  failover_.advance();
  const auto now = Clock::now();
  std::erase_if(
      tasks_, [&](Task& task) { return task.next <= now && advance(task); });
  handshakes_.expire(looked_);
  if (handshakes_.takeNews()) {
    lookAgain();
  } else {
    sleep();
  }
}

// Memory that was posted before its pair was connected has kept them waiting.
void WireUp::answerJoins() {
  std::vector<GroupRegistry::Waiting> joins;
  {
    const EngineLock lock(state_);
    joins = state_.groupRegistry.takeWaiting();
  }
  for (const auto& waiting : joins) {
    try {
      prepareAll(state_, waiting.unprepared);
      const EngineLock lock(state_);
      if (waiting.channel->alive()) {
        state_.groupRegistry.onGroupMessage(waiting.channel, waiting.join);
        state_.epoll.kick(); // what waited may not have gone out as a whole
      }
    } catch (const std::bad_alloc&) {
      const EngineLock lock(state_);
      waiting.channel->failForWantOfMemory();
    }
  }
}

void WireUp::sleep() {
  std::vector<pollfd> fds{{state_.nudge.get(), POLLIN, 0}};
  handshakes_.addTo(fds);
  const auto devices = fds.size();
  for (const auto& transport : state_.transports.all()) {
    for (const int fd : transport->deviceFds()) {
      fds.push_back({fd, POLLIN, 0});
    }
  }
  auto until = std::min(
      {handshakes_.nextDeadline(),
       failover_.next(),
       failback_.next(),
       state_.closer.next()});
  for (const auto& task : tasks_) {
    until = std::min(until, task.next);
  }
  looked_ = Clock::now();
  if (::poll(fds.data(), fds.size(), pollTimeoutMs(until)) <= 0) {
    return;
  }
  if (fds[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const auto got =
        read(state_.nudge.get(), &count, sizeof(count));
  }
  if (std::any_of(fds.begin() + devices, fds.end(), [](const pollfd& entry) {
        return entry.revents != 0;
      })) {
    onDevices();
  }
  handshakes_.onPoll(fds);
  lookAgain(); // a connection may just have come up
}

void WireUp::onDevices() {
  for (const auto& transport : state_.transports.all()) {
    const auto news = transport->onDevices();
    if (news.up) {
      failback_.onDeviceUp();
      failover_.onDeviceUp();
    }
    if (news.down) {
      state_.epoll.kick(); // so that somebody polls, and finds it
    }
  }
}

void WireUp::lookAgain() {
  for (auto& task : tasks_) {
    task.next = TimePoint{};
  }
}

void WireUp::fail(
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

// What a process has lacked is told by one of the two, and only when it is
// asked: the other end's next tries find less.
std::string WireUp::causeOf(const Task& task) {
  const bool told = task.shortage.empty() ||
      task.problem.find(task.shortage) != std::string::npos;
  return told ? task.problem
              : task.problem + " (an earlier try: " + task.shortage + ")";
}

bool WireUp::advance(Task& task) {
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

bool WireUp::isOver(Task& task, const std::shared_ptr<Group>& group) {
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

bool WireUp::look(Task& task, const std::shared_ptr<Group>& group) {
  const auto found = group->addresses().find(task.rank);
  if (!found.record) {
    task.problem = found.problem;
    return false;
  }
  AddressRecord record;
  try {
    record = decodeAddress(*found.record);
  } catch (const Error& error) { // of another version: no time mends that
    const Status why(ErrorCode::kUnavailable, error.what());
    return onFailure(task, group, *found.record, why, false);
  }
  return reach(task, group, record, *found.record);
}

// False: there is no connection yet.
bool WireUp::join(
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
    const auto unprepared = group.unprepared(task.rank, channel->registrar());
    if (unprepared.operations.empty()) {
      if (group.link(task.rank).state == Group::LinkState::kResolving) {
        task.problem = kNotJoinedText;
        if (std::exchange(task.asked, true)) {
          group.addresses().refresh(task.rank);
        }
      }
      state_.groupRegistry.sendJoin(group, task.rank, channel, remoteGroup);
      state_.epoll.kick(); // to oneself no descriptor tells of it
      return true;
    }
    lock.leave();
    prepareAll(state_, unprepared);
  }
}

// A connection may break before anybody could ask by it: that counts as one
// which broke before it was answered, else it would be made for ever.
void WireUp::countBroken(Task& task, Group& group, const ChannelKey& key) {
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

bool WireUp::reach(
    Task& task,
    const std::shared_ptr<Group>& group,
    const AddressRecord& record,
    const Bytes& bytes) {
  const ChannelKey key{record.identity.instance, group->options().route};
  if (join(task, *group, key, record.group)) {
    task.failed.reset();
    return false; // over when the answer has come
  }
  countBroken(task, *group, key);
  if (handshakes_.busy(key)) {
    return false;
  }
  const auto failure = handshakes_.failure(key);
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
       0,
       std::nullopt});
  // To oneself the channel is there at once; a refusal may be, too.
  task.next = TimePoint{};
  return false;
}

// Its process is gone. A record that is older than our own joining may be of an
// earlier life of the job, whose next one is about to write another; on another
// host no clock tells.
bool WireUp::diedInThisLife(const Group& group, const AddressRecord& record)
    const {
  return meetLocally(state_.self, record.identity) &&
      record.joined > group.options().joined;
}

// False: the same was tried a moment ago.
bool WireUp::mayTry(Task& task, const Bytes& record) {
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

bool WireUp::onFailure(
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
  if (why.code() == ErrorCode::kNotJoined) { // it lives, and may come
    task.deadRecord.clear();
    group->addresses().refresh(task.rank);
    return false;
  }
  if (task.deadRecord != record) {
    task.deadRecord = record;
    task.deadSince = Clock::now();
  }
  if (group->options().oneLife && gone) {
    fail(task, group, ErrorCode::kPeerFailed);
    return true;
  }
  if (Clock::now() - task.deadSince < kDeadRecordTime) {
    group->addresses().refresh(task.rank);
    return false;
  }
  task.problem += ", and no newer address has appeared for 60 s";
  fail(task, group, ErrorCode::kPeerFailed);
  return true;
}

} // namespace dlslime
