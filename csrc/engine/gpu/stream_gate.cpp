#include "engine/gpu/stream_gate.h"

#include <algorithm>

#include "base/leak_on_purpose.h"

namespace dlslime {

namespace {

// How often streams are asked for failures: a failed stream never comes to an
// operation.
constexpr milliseconds kHealthInterval{10};

bool reached(const Operation& operation) {
  return !operation.onDevice || operation.onDevice->mark->reached();
}

Status healthOf(const Operation& operation) {
  if (!operation.onDevice) {
    return {};
  }
  const auto health = operation.onDevice->mark->health();
  return health.ok() ? health
                     : Status(
                           health.code(),
                           operation.describe() +
                               " failed before it began: " + health.message());
}

} // namespace

StreamGate::~StreamGate() {
  // Streams may still come to the remaining operations and must then find the
  // memory intact. With the gate gone nothing can tell when, so the operations
  // are leaked.
  for (auto& [key, queue] : queues_) {
    ended_.splice(ended_.end(), queue);
  }
  for (auto& operation : ended_) {
    leakOnPurpose(std::move(operation));
  }
}

StreamGate::Key StreamGate::keyOf(const Operation& operation) {
  const auto kind = operation.kind();
  return {
      kind,
      operation.tag(),
      kind == Operation::Kind::kSend ? operation.peer() : Operation::kAnySource,
      operation.oneSided() ? operation.onDevice->stream.native : nullptr};
}

bool StreamGate::mustHold(const Operation& operation) const {
  return !reached(operation) ||
      (!queues_.empty() && !operation.oneSided() &&
       queues_.contains(keyOf(operation)));
}

void StreamGate::hold(const OperationPtr& operation) {
  if (empty()) {
    lastAsked_ = Clock::now();
  }
  operation->stage = Operation::Stage::kHeld;
  queues_[keyOf(*operation)].push_back(operation);
}

bool StreamGate::healthDue() {
  const auto now = Clock::now();
  if (now - lastAsked_ < kHealthInterval) {
    return false;
  }
  lastAsked_ = now;
  return true;
}

void StreamGate::takeFrom(Queue& queue, bool ask, OperationQueue& taken) {
  while (!queue.empty()) {
    auto& first = queue.front();
    if (reached(*first)) {
      taken.push(std::move(first));
    } else if (auto health = ask ? healthOf(*first) : Status(); !health.ok()) {
      completions_.finish(std::move(first), std::move(health));
    } else {
      return;
    }
    queue.pop_front();
  }
}

void StreamGate::releaseEnded(bool ask) {
  std::erase_if(ended_, [&](OperationPtr& operation) REQUIRES(kEngineLock) {
    const bool over =
        reached(*operation) || (ask && !healthOf(*operation).ok());
    if (over) {
      completions_.finish(std::move(operation), {});
    }
    return over;
  });
}

OperationQueue StreamGate::takeReached() {
  OperationQueue taken;
  const bool ask = healthDue();
  for (auto it = queues_.begin(); it != queues_.end();) {
    takeFrom(it->second, ask, taken);
    it = it->second.empty() ? queues_.erase(it) : std::next(it);
  }
  releaseEnded(ask);
  return taken;
}

void StreamGate::cancel(const OperationPtr& operation, const Status& why) {
  const auto found = queues_.find(keyOf(*operation));
  if (found == queues_.end()) {
    return;
  }
  auto& queue = found->second;
  const auto it = std::find(queue.begin(), queue.end(), operation);
  if (it == queue.end()) {
    return;
  }
  completions_.finishEarly(operation, why);
  ended_.splice(ended_.end(), queue, it);
  if (queue.empty()) {
    queues_.erase(found);
  }
}

void StreamGate::cancelAll(const Status& why) {
  for (const auto& operation : pending()) {
    cancel(
        operation,
        {why.code(), operation->describe() + " failed: " + why.message()});
  }
}

std::vector<OperationPtr> StreamGate::pending() const {
  std::vector<OperationPtr> all;
  for (const auto& [key, queue] : queues_) {
    all.insert(all.end(), queue.begin(), queue.end());
  }
  return all;
}

} // namespace dlslime
