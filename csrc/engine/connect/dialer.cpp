#include "engine/connect/dialer.h"

#include <algorithm>
#include <utility>

namespace dlslime {

namespace {
constexpr milliseconds kVerifyPause{1}; // between looks at a made connection
} // namespace

void Dialer::begin(const ConnectRequest& request) {
  const ChannelKey key = request.key;
  drop(key);
  auto& handshake =
      handshakes_.try_emplace(key, state_, acceptor_, request).first->second;
  try {
    handshake.start();
  } catch (const std::exception& error) {
    fail(key, statusOf(error));
  }
}

bool Dialer::hasConnected(const ChannelKey& key) const {
  const auto found = handshakes_.find(key);
  return found != handshakes_.end() && found->second.connector().socket() &&
      !found->second.connector().connecting();
}

std::string Dialer::progress(const ChannelKey& key) const {
  const auto found = handshakes_.find(key);
  return found == handshakes_.end() ? "" : found->second.connector().progress();
}

void Dialer::drop(const ChannelKey& key) {
  const auto found = handshakes_.find(key);
  if (found != handshakes_.end()) {
    found->second.withdraw();
    handshakes_.erase(found);
  }
}

void Dialer::fail(const ChannelKey& key, Status why) {
  const bool gone = handshakes_.at(key).connector().gone();
  drop(key);
  results_.onFailed(key, std::move(why), gone);
}

void Dialer::addTo(std::vector<pollfd>& fds) const {
  for (const auto& [key, handshake] : handshakes_) {
    handshake.connector().addTo(fds);
  }
}

void Dialer::onPoll(const std::set<int>& heard) {
  const auto ready = [&heard](const OutgoingHandshake& handshake) {
    const auto& socket = handshake.connector().socket();
    return socket && heard.contains(socket->fd());
  };
  advanceThose(ready, &OutgoingHandshake::onSocket);
}

TimePoint Dialer::nextDeadline() const {
  auto next = never();
  for (const auto& [key, handshake] : handshakes_) {
    next = std::min(
        next,
        handshake.isVerifying() ? deadlineAfter(kVerifyPause)
                                : handshake.deadline());
  }
  return next;
}

void Dialer::expire(TimePoint looked) {
  const auto verifying = [](const OutgoingHandshake& handshake) {
    return handshake.isVerifying();
  };
  advanceThose(verifying, &OutgoingHandshake::verifyAgain);
  const auto late = [looked](const OutgoingHandshake& handshake) {
    return handshake.deadline() <= looked;
  };
  advanceThose(late, &OutgoingHandshake::onLate);
}

// Chooses first: a step may end handshakes.
template <typename Chosen>
void Dialer::advanceThose(const Chosen& chosen, Step step) {
  std::vector<ChannelKey> keys;
  for (const auto& [key, handshake] : handshakes_) {
    if (chosen(handshake)) {
      keys.push_back(key);
    }
  }
  for (const auto& key : keys) {
    advance(key, step);
  }
}

void Dialer::advance(const ChannelKey& key, Step step) {
  auto& handshake = handshakes_.at(key);
  try {
    if (!(handshake.*step)()) {
      return;
    }
    auto made = handshake.take();
    auto socket = handshake.takeSocket();
    results_.onMade(std::move(made), std::move(socket));
    handshakes_.erase(key);
  } catch (const std::exception& error) {
    fail(key, statusOf(error));
  }
}

} // namespace dlslime
