#include "engine/connect/failback.h"

#include <algorithm>
#include <iterator>

#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// Limit of the growing pause, in multiples of DLSLIME_RETURN_MS: a firewalled
// path is probed ever more rarely.
constexpr int kLongestPauseParts = 16;
} // namespace

void Failback::advance() {
  state_.wireUpThread.claimThis("a function of the wire-up thread is called");
  take();
  const bool all = std::exchange(lookAtAll_, false);
  if (state_.config.recovery.count() == 0 ||
      state_.config.returning.count() == 0) {
    return;
  }
  std::vector<ChannelTable::Member> members;
  {
    const EngineLock lock(state_);
    members = state_.channels.those(
        [all](const PeerChannel& channel) REQUIRES(kEngineLock) {
          return (channel.open() && channel.connection().couldBeBetter()) ||
              (all && channel.replaceable());
        });
  }
  const auto now = Clock::now();
  const auto pause = state_.config.returning;
  std::map<ChannelKey, Search> searches;
  // Searches that have succeeded are kept until `next`, with the grown pause:
  // the connection may be lost again soon.
  std::copy_if(
      searches_.begin(),
      searches_.end(),
      std::inserter(searches, searches.end()),
      [now](const auto& entry) { return now < entry.second.next; });
  for (const auto& member : members) {
    const auto known = searches_.find(member.key);
    auto& search = searches[member.key];
    search = known != searches_.end() ? known->second
                                      : Search{all ? now : now + pause, pause};
    if (now >= search.next) {
      probe(member);
      search.next = now + search.pause;
      search.pause = std::min(search.pause * 2, pause * kLongestPauseParts);
    }
  }
  searches_ = std::move(searches);
}

TimePoint Failback::next() const {
  auto next = lookAtAll_ ? TimePoint{} : never();
  for (const auto& [key, search] : searches_) {
    next = std::min(next, search.next);
  }
  return next;
}

void Failback::probe(const ChannelTable::Member& member) {
  if (handshakes_.busy(member.key)) {
    return;
  }
  ConnectRequest request;
  request.key = member.key;
  request.record = member.contact.record;
  request.pairSecret = member.contact.pairSecret;
  request.fallback = FallbackPolicy::kForbid;
  Prober::Standing standing;
  {
    const EngineLock lock(state_);
    standing = {
        member.channel->connection().route(),
        member.channel->connection().info().merit};
  }
  handshakes_.probe(std::move(request), std::move(standing));
}

// Gives up the working connections for which a probe has found a better
// connection.
void Failback::take() {
  for (const auto& [key, what] : handshakes_.takeBetter()) {
    const EngineLock lock(state_);
    if (const auto channel = state_.channels.find(key)) {
      channel->handOver(Status(
          ErrorCode::kTransportFailed,
          "a better connection is possible: " + what));
    }
  }
}

} // namespace dlslime
