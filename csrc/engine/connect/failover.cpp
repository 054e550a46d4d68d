#include "engine/connect/failover.h"

#include <algorithm>

#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
constexpr milliseconds kFirstPause{5};
constexpr milliseconds kLongestPause{1000};
// Least time to replace a connection given up while working, however short
// DLSLIME_RECOVERY_MS is.
constexpr milliseconds kLeastTime{10000};
constexpr milliseconds kDrainPause{5};
constexpr milliseconds kSteadyTime{3000}; // a connection this old works
constexpr int kPatienceParts = 4; // a wait takes at most 1/4 of the whole time
} // namespace

// Polls severed channels: possibly no descriptor tells when the old connection
// has been read to the end.
void Failover::drain() {
  const EngineLock lock(state_);
  const auto left = state_.channels.those(
      [](const PeerChannel& channel) REQUIRES(kEngineLock) {
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
  state_.wireUpThread.claimThis("a function of the wire-up thread is called");
  drain();
  std::vector<ChannelTable::Member> lost;
  {
    const EngineLock lock(state_);
    lost = state_.channels.those(
        [](const PeerChannel& channel)
            REQUIRES(kEngineLock) { return channel.awaitsConnection(); });
  }
  std::map<ChannelKey, Search> searches;
  const auto now = Clock::now();
  for (const auto& entry : lost) {
    auto& search = searches[entry.key];
    search = searchFor(entry, now);
    if (now >= search.next && !handshakes_.busy(entry.key)) {
      look(entry, search);
    }
  }
  noteFound(searches);
  searches_ = std::move(searches);
}

// Returns the search for the lost connection: the one under way, or a new one.
Failover::Search Failover::searchFor(
    const ChannelTable::Member& lost,
    TimePoint now) {
  uint32_t generation = 0;
  bool whole = false;
  {
    const EngineLock lock(state_);
    generation = lost.channel->connection().generation();
    whole = lost.channel->connection().leftWhole();
  }
  const auto known = searches_.find(lost.key);
  if (known != searches_.end()) {
    if (known->second.generation == generation) {
      return known->second;
    }
    found_[lost.key] = {now, known->second.pause}; // found, then lost again
  }
  // A short DLSLIME_RECOVERY_MS must not cost a pair a working connection.
  const auto time = whole ? std::max(state_.config.recovery, kLeastTime)
                          : state_.config.recovery;
  // A connection given up for a better connection is replaced at once.
  const auto wait = whole
      ? milliseconds(0)
      : std::min(waitFor(lost.key, now), time / kPatienceParts);
  return {
      generation,
      deadlineAfter(time),
      deadlineAfter(std::min(state_.config.patience, time / kPatienceParts)),
      now + wait,
      std::max(wait, kFirstPause),
      "there was no time to try"};
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

// Returns the wait before the first try: zero, unless connections of the pair
// are lost soon after being made.
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

// Returns whether the last try has shown that all further tries would fail.
bool Failover::hopeless(const ChannelTable::Member& lost, Search& search)
    const {
  const auto failure = handshakes_.failure(lost.key);
  if (failure.ok()) {
    return false;
  }
  search.problem = failure.message();
  // The peer has given up the channel, or the peer's process has ended.
  return failure.code() == ErrorCode::kTransportFailed ||
      handshakes_.gone(lost.key);
}

void Failover::look(const ChannelTable::Member& lost, Search& search) {
  if (hopeless(lost, search) || Clock::now() >= search.deadline) {
    giveUp(lost, search);
    return;
  }
  ConnectRequest request;
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
      request.fallback = FallbackPolicy::kAllow; // resumed() logs the route
    }
    request.carrierSource = group->options().carrierSource;
    request.key = lost.key;
    request.record = lost.contact.record;
    request.pairSecret = lost.contact.pairSecret;
    request.record.group = group->remoteId(request.rank);
    request.replaces = lost.channel->connection().generation();
    request.lastSeen = lost.channel->lastSeen();
  }
  handshakes_.begin(request);
  search.next = deadlineAfter(search.pause);
  search.pause = std::min(search.pause * 2, kLongestPause);
}

void Failover::giveUp(const ChannelTable::Member& lost, const Search& search) {
  const EngineLock lock(state_);
  const auto& peer = lost.channel->peer();
  lost.channel->fail(Status(
      ErrorCode::kPeerFailed,
      "the connection to pid " + std::to_string(peer.pid) + " on " + peer.host +
          " over " + lost.channel->connection().route() + " was lost (" +
          lost.channel->failure().message() +
          "), and could not be replaced (tried for " +
          std::to_string(state_.config.recovery.count()) +
          " ms, DLSLIME_RECOVERY_MS): " + search.problem));
  state_.retireFailed();
}

} // namespace dlslime
