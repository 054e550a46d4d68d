#include "engine/state/closer.h"

#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// Pause between looks of finish() while waiting for connections to close.
constexpr microseconds kShortPause{50};
// Time to the next advance(), while connections are being closed.
constexpr milliseconds kPause{1};
} // namespace

void Closer::advance() {
  {
    const EngineLock lock(state_);
    auto& retired = state_.retired;
    closing_.reserve(closing_.size() + retired.size());
    for (auto& one : retired) {
      closing_.push_back({std::move(one), Clock::now(), false});
    }
    retired.clear();
  }
  look();
}

TimePoint Closer::next() const {
  return closing_.empty() ? never() : deadlineAfter(kPause);
}

void Closer::finish() {
  for (advance(); !closing_.empty(); look()) {
    std::this_thread::sleep_for(kShortPause);
  }
}

void Closer::finishAll() {
  for (;;) {
    closing_.reserve(
        closing_.size() +
        1); // before taking: a connection taken must not be lost
    const EngineLock lock(state_);
    auto failed = state_.channels.takeFailed();
    if (!failed) {
      break;
    }
    closing_.push_back({std::move(*failed), Clock::now(), true});
  }
  finish();
}

void Closer::look() {
  for (size_t i = 0; i < closing_.size();) {
    if (isOver(closing_[i])) {
      std::swap(closing_[i], closing_.back());
      closing_.pop_back();
    } else {
      ++i;
    }
  }
}

// Returns true once the connection is closed. May be called again after an
// exception: the channel may lack memory for quieted().
bool Closer::isOver(Closing& closing) {
  auto& [connection, channel, socket] = closing.retired;
  // A peer with an ended socket answers no more, and the peer's NIC is silent.
  const bool atOnce =
      Clock::now() >= closing.begun + kPatience || (socket && socket->ended());
  try {
    if (connection && !connection->close(atOnce)) {
      return false;
    }
  } catch (const std::bad_alloc&) {
    logWithoutMemory("closing a connection");
  }
  socket.reset(); // now: the peer's close() may be waiting for the socket's end
  connection.reset();
  const EngineLock lock(state_);
  if (!closing.atEnd || !channel->copies().any()) {
    channel->quieted();
  }
  return true;
}

} // namespace dlslime
