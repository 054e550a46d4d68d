#include "engine/peer/look_order.h"

#include <algorithm>

#include "engine/channel/peer_channel.h"

namespace dlslime {

namespace {
// Looks without news after which a channel without work is quiet: tens of
// microseconds, longer than the gaps in steady traffic.
constexpr int kVainLooks = 256;
// Quiet channels polled by a partial look: a few tens of nanoseconds each. Of
// 256 quiet channels each is polled within 128 looks, some tens of
// microseconds.
constexpr size_t kQuietPerLook = 2;
} // namespace

void LookOrder::add(PeerChannel& channel) {
  // Reserves room first: a channel must not be lost between the two lists.
  quiet_.reserve(quiet_.size() + busy_.size() + 1);
  busy_.reserve(quiet_.size() + busy_.size() + 1);
  busy_.push_back({&channel});
}

void LookOrder::remove(const PeerChannel& channel) {
  std::erase_if(
      busy_, [&](const Busy& entry) { return entry.channel == &channel; });
  std::erase(quiet_, &channel);
}

bool LookOrder::lookAtAll(int most) {
  bool seen = false;
  bool any = lookAtBusy(nullptr, most, seen);
  // Backwards, because a channel with news leaves the list.
  for (size_t i = quiet_.size(); i > 0; --i) {
    any |= lookAtQuiet(i - 1, most);
  }
  return any;
}

bool LookOrder::lookFor(PeerChannel* awaited, int most) {
  bool seen = false;
  bool any = lookAtBusy(awaited, most, seen);
  if (awaited != nullptr && !seen) {
    const auto found = std::find(quiet_.begin(), quiet_.end(), awaited);
    any |= found != quiet_.end() &&
        lookAtQuiet(static_cast<size_t>(found - quiet_.begin()), most);
  }
  return any;
}

bool LookOrder::lookInTurn(int most) {
  bool any = false;
  for (size_t i = std::min(kQuietPerLook, quiet_.size()); i > 0; --i) {
    turn_ = turn_ < quiet_.size() ? turn_ : 0;
    any |= !quiet_.empty() && lookAtQuiet(turn_++, most);
  }
  return any;
}

// Handling a message may fail a channel, but neither adds nor removes one.
bool LookOrder::lookAtBusy(PeerChannel* awaited, int most, bool& seen) {
  bool any = false;
  for (size_t i = 0; i < busy_.size();) {
    auto& entry = busy_[i];
    seen |= entry.channel == awaited;
    if (entry.channel->poll(most)) {
      any = true;
      entry.vain = 0;
    } else if (++entry.vain >= kVainLooks) {
      entry.vain = 0;
      if (!entry.channel->working()) {
        quiet_.push_back(entry.channel);
        entry = busy_.back();
        busy_.pop_back();
        continue;
      }
    }
    ++i;
  }
  return any;
}

bool LookOrder::lookAtQuiet(size_t index, int most) {
  auto* const channel = quiet_[index];
  const bool any = channel->glance(most);
  if (any || channel->working()) {
    busy_.push_back({channel});
    quiet_[index] = quiet_.back();
    quiet_.pop_back();
  }
  return any;
}

} // namespace dlslime
