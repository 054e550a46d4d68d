#include "engine/recovery.h"

#include <algorithm>

#include "engine/section.h"

namespace dlslime {

namespace {
constexpr milliseconds kFirstPause{5};
constexpr milliseconds kLongestPause{1000};
// A link that was down answers by TCP before its NIC says that it is up, and
// switches take seconds: so long no Gloo takes its place.
constexpr milliseconds kPatience{3000};
constexpr int kPatienceParts = 4; // at most this part of DLSLIME_RECOVERY_MS
} // namespace

void Recovery::advance() {
  std::vector<ChannelTable::Member> lost;
  {
    const Section section(state_);
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
    search = same
        ? known->second
        : Search{
              generation,
              deadlineAfter(state_.config.recovery),
              deadlineAfter(
                  std::min(kPatience, state_.config.recovery / kPatienceParts)),
              now,
              kFirstPause,
              "there was no time to try"};
    if (now >= search.next && !handshakes_.busy(entry.key)) {
      look(entry, search);
    }
  }
  searches_ = std::move(searches);
}

TimePoint Recovery::next() const {
  auto next = never();
  for (const auto& [key, search] : searches_) {
    next = std::min(
        next,
        handshakes_.busy(key) ? deadlineAfter(kLongestPause) : search.next);
  }
  return next;
}

void Recovery::onDeviceUp() {
  for (auto& [key, search] : searches_) {
    search.next = TimePoint{};
  }
}

std::shared_ptr<Group> Recovery::groupOf(const PeerChannel& channel, int& rank)
    const {
  for (const auto& group : state_.membership.all()) {
    for (rank = 0; rank < group->size(); ++rank) {
      if (!group->closed() && group->link(rank).channel.get() == &channel) {
        return group;
      }
    }
  }
  return nullptr;
}

// What the last try has found leaves nothing to hope for.
bool Recovery::hopeless(const ChannelTable::Member& lost, Search& search)
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

void Recovery::look(const ChannelTable::Member& lost, Search& search) {
  if (hopeless(lost, search) || Clock::now() >= search.deadline) {
    giveUp(lost, search);
    return;
  }
  Handshakes::Request request;
  {
    const Section section(state_);
    if (!lost.channel->awaitsConnection()) {
      return;
    }
    const auto group = groupOf(*lost.channel, request.rank);
    if (!group) {
      lost.channel->fail(
          Status(ErrorCode::kCancelled, "no group needs the connection"));
      state_.buryFailed();
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
    request.record = lost.peer;
    request.record.group = group->remoteId(request.rank);
    request.replaces = lost.channel->generation();
    request.lastSeen = lost.channel->lastSeen();
  }
  handshakes_.begin(std::move(request));
  search.next = deadlineAfter(search.pause);
  search.pause = std::min(search.pause * 2, kLongestPause);
}

void Recovery::giveUp(const ChannelTable::Member& lost, const Search& search) {
  const Section section(state_);
  const auto& peer = lost.channel->peer();
  lost.channel->fail(Status(
      ErrorCode::kPeerFailed,
      "the connection to pid " + std::to_string(peer.pid) + " on " + peer.host +
          " by " + lost.channel->route() + " was lost (" +
          lost.channel->failure().message() +
          "), and no other could be made in its place (tried for " +
          std::to_string(state_.config.recovery.count()) +
          " ms, DLSLIME_RECOVERY_MS): " + search.problem));
  state_.buryFailed();
}

} // namespace dlslime
