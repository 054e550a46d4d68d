#include "engine/connect/wireup.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/inspect/job_report.h"
#include "engine/progress/engine_thread.h"
#include "engine/state/engine_lock.h"
#include "engine/state/preparing.h"

namespace dlslime {

WireUp::WireUp(EngineState& state)
    : state_(state),
      handshakes_(state),
      search_(state, handshakes_),
      failover_(state, handshakes_),
      failback_(state, handshakes_),
      inspection_([&state] { return jobReport(state); }) {}

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

void WireUp::run() {
  while (!stopping_.load()) {
    surviveWantOfMemory("making connections", [this] { round(); });
  }
}

void WireUp::round() {
  state_.closer.advance();
  state_.registrationThread.standIn();
  answerJoins();
  failback_.advance();
  failover_.advance();
  search_.advance();
  handshakes_.expire(looked_);
  inspection_.expire(looked_);
  if (handshakes_.takeNews()) {
    search_.lookAgain();
  } else {
    sleep();
  }
}

// Prepares memory posted before the pair was connected, and answers the joins
// that waited for the preparation.
void WireUp::answerJoins() {
  std::vector<Joins::Waiting> joins;
  {
    const EngineLock lock(state_);
    joins = state_.groupRegistry.joins().takeWaiting();
  }
  for (const auto& waiting : joins) {
    try {
      prepareAll(state_, waiting.unprepared);
      const EngineLock lock(state_);
      if (waiting.channel->alive()) {
        state_.groupRegistry.joins().onJoin(waiting.channel, waiting.join);
        state_.epoll.kick(); // waiting sends may not have gone out entirely
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
  inspection_.addTo(fds);
  const auto devices = fds.size();
  for (const auto& transport : state_.transports.all()) {
    if (auto* const watch = transport->deviceWatch()) {
      for (const int fd : watch->deviceFds()) {
        fds.push_back({fd, POLLIN, 0});
      }
    }
  }
  const auto until = std::min(
      {handshakes_.nextDeadline(),
       search_.nextDeadline(),
       failover_.next(),
       failback_.next(),
       inspection_.nextDeadline(),
       state_.closer.next()});
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
  inspection_.onPoll(fds);
  search_.lookAgain(); // a connection may just have come up
}

void WireUp::onDevices() {
  for (const auto& transport : state_.transports.all()) {
    auto* const watch = transport->deviceWatch();
    if (watch == nullptr) {
      continue;
    }
    const auto news = watch->onDevices();
    if (news.up) {
      failback_.onDeviceUp();
      failover_.onDeviceUp();
    }
    if (news.down) {
      state_.epoll.kick(); // a thread then polls, and finds what is broken
    }
  }
}

} // namespace dlslime
