#include "engine/connect/failover.h"

#include <algorithm>

#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
constexpr milliseconds kFirstPause{5};
constexpr milliseconds kLongestPause{1000};
// For one that was left while it worked, whatever DLSLIME_RECOVERY_MS says.
constexpr milliseconds kLeastTime{10000};
constexpr milliseconds kDrainPause{5};
constexpr milliseconds kSteadyTime{3000}; // one that lives so long works
constexpr int kPatienceParts = 4; // at most this part of DLSLIME_RECOVERY_MS
} // namespace

// Nothing may tell when a connection that was left is read to its end.
void Failover::drain() {
  const EngineLock lock(state_);
  const auto left = state_.channels.those([](const PeerChannel& channel) {
    return channel.state() == PeerChannel::State::kSevered &&
        !channel.awaitsConnection();
  });
  for (const auto& member : left) {
    member.channel->poll();
  }
  draining_ = !left.empty();
  state_.retireFailed();
}

void Failover::advance() {
  drain();
  std::vector<ChannelTable::Member> lost;
  {
    const EngineLock lock(state_);
    lost = state_.channels.those(
        [](const PeerChannel& channel) { return channel.awaitsConnection(); });
  }
  std::map<ChannelKey, Search> searches;
  const auto now = Clock::now();
  for (const auto& entry : lost) {
    const auto generation = entry.channel->generation();
    const auto known = searches_.find(entry.key);
    const bool same =
        known != searches_.end() && known->second.generation == generation;
    auto& search = searches[entry.key];
    // Nobody loses a connection that works for want of time.
    const auto time = entry.channel->leftWhole()
        ? std::max(state_.config.recovery, kLeastTime)
        : state_.config.recovery;
    if (same) {
      search = known->second;
    } else {
      if (known != searches_.end()) { // found, and lost again
        found_[entry.key] = {now, known->second.pause};
      }
      // One that was left for a better one is replaced at once.
      const auto wait = entry.channel->leftWhole()
          ? milliseconds(0)
          : std::min(waitFor(entry.key, now), time / kPatienceParts);
      search = {
          generation,
          deadlineAfter(time),
          deadlineAfter(
              std::min(state_.config.patience, time / kPatienceParts)),
          now + wait,
          std::max(wait, kFirstPause),
          "there was no time to try"};
    }
    if (now >= search.next && !handshakes_.busy(entry.key)) {
      look(entry, search);
    }
  }
  noteFound(searches);
  searches_ = std::move(searches);
}

void Failover::noteFound(const std::map<ChannelKey, Search>& searches) {
  const auto now = Clock::now();
  std::erase_if(found_, [now](const auto& entry) {
    return now - entry.second.when > kSteadyTime;
  });
  for (const auto& [key, search] : searches_) {
    if (!searches.contains(key)) {
      found_[key] = {now, search.pause};
    }
  }
}

// None, unless connections of this pair are lost as soon as they are made.
milliseconds Failover::waitFor(const ChannelKey& key, TimePoint now) const {
  const auto found = found_.find(key);
  return found == found_.end() || now - found->second.when > kSteadyTime
      ? milliseconds(0)
      : found->second.pause;
}

TimePoint Failover::next() const {
  auto next = draining_ ? deadlineAfter(kDrainPause) : never();
  for (const auto& [key, search] : searches_) {
    next = std::min(
        next,
        handshakes_.busy(key) ? deadlineAfter(kLongestPause) : search.next);
  }
  return next;
}

void Failover::onDeviceUp() {
  found_.clear();
  for (auto& [key, search] : searches_) {
    search.next = TimePoint{};
  }
}

// What the last try has found leaves nothing to hope for.
bool Failover::hopeless(const ChannelTable::Member& lost, Search& search)
    const {
  const auto failure = handshakes_.failure(lost.key);
  if (failure.ok()) {
    return false;
  }
  search.problem = failure.message();
  // The peer does not know the channel any more, or is no more itself.
  return failure.code() == ErrorCode::kTransportFailed ||
      handshakes_.gone(lost.key);
}

void Failover::look(const ChannelTable::Member& lost, Search& search) {
  if (hopeless(lost, search) || Clock::now() >= search.deadline) {
    giveUp(lost, search);
    return;
  }
  Handshakes::Request request;
  {
    const EngineLock lock(state_);
    if (!lost.channel->awaitsConnection()) {
      return;
    }
    const auto group = state_.groupUsing(*lost.channel, request.rank);
    if (!group) {
      lost.channel->fail(
          Status(ErrorCode::kCancelled, "no group needs the connection"));
      state_.retireFailed();
      return;
    }
    request.fallback = group->options().fallback;
    if (Clock::now() < search.patience) {
      request.fallback = FallbackPolicy::kForbid;
    } else if (request.fallback == FallbackPolicy::kWarn) {
      request.fallback = FallbackPolicy::kAllow; // it is told when it is so
    }
    request.carrierSource = group->options().carrierSource;
    request.key = lost.key;
    request.record = lost.contact.record;
    request.pairSecret = lost.contact.pairSecret;
    request.record.group = group->remoteId(request.rank);
    request.replaces = lost.channel->generation();
    request.lastSeen = lost.channel->lastSeen();
  }
  handshakes_.begin(std::move(request));
  search.next = deadlineAfter(search.pause);
  search.pause = std::min(search.pause * 2, kLongestPause);
}

void Failover::giveUp(const ChannelTable::Member& lost, const Search& search) {
  const EngineLock lock(state_);
  const auto& peer = lost.channel->peer();
  lost.channel->fail(Status(
      ErrorCode::kPeerFailed,
      "the connection to pid " + std::to_string(peer.pid) + " on " + peer.host +
          " by " + lost.channel->route() + " was lost (" +
          lost.channel->failure().message() +
          "), and no other could be made in its place (tried for " +
          std::to_string(state_.config.recovery.count()) +
          " ms, DLSLIME_RECOVERY_MS): " + search.problem));
  state_.retireFailed();
}

} // namespace dlslime
