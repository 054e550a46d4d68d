#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "base/seeded_hash.h"
#include "engine/wire/two_sided_messages.h"
#include "interface/memory.h"

namespace dlslime {

// Memory offered by a peer for our next message of a group and tag (kRtr). An
// offer holds for the first message that the peer had not seen when offering,
// so recent messages are remembered here, too. Dropping an offer does no harm:
// the message goes another way, which ends the offer at the peer.
class PeerAdvertisements {
 public:
  struct Target {
    uint64_t id = 0; // the peer's id of the offer
    RemoteBuffer memory;
    uint64_t capacity = 0; // bytes
  };

  // Notes that a tensor message was sent.
  void noteSent(uint64_t group, uint32_t tag, uint64_t sequence) {
    sent_[sequence % kKept] = {sequence, group, tag};
  }
  // Takes an offer that came after `last` messages of all kinds were sent.
  void offer(const wire::Rtr& rtr, uint64_t last) {
    const Key key{rtr.group, rtr.tag};
    if (targets_.size() < kMostTargets && !sentSince(rtr.lastSeen, last, key)) {
      targets_[key] = {rtr.id, rtr.memory, rtr.capacity};
    }
  }
  // Returns the offer for our next message, or null.
  const Target* find(uint64_t group, uint32_t tag) const {
    if (targets_.empty()) {
      return nullptr;
    }
    const auto found = targets_.find({group, tag});
    return found == targets_.end() ? nullptr : &found->second;
  }
  void drop(uint64_t group, uint32_t tag) {
    if (!targets_.empty()) { // most often empty; always if nothing is pushed
      targets_.erase({group, tag});
    }
  }
  // Drops an offer that the peer takes back.
  void retract(const wire::Retract& retract) {
    const auto* const target = find(retract.group, retract.tag);
    if (target != nullptr && target->id == retract.id) {
      drop(retract.group, retract.tag);
    }
  }
  void clear() {
    targets_.clear();
  }

 private:
  // Messages remembered: more than a ring holds are not expected on the way.
  static constexpr uint64_t kKept = 1024;
  static constexpr size_t kMostTargets = 4096;

  struct Key {
    uint64_t group;
    uint32_t tag;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return seededHash(key.group << 32 | key.tag);
    }
  };
  struct Sent {
    uint64_t sequence = 0, group = 0;
    uint32_t tag = 0;
  };

  bool sentSince(uint64_t seen, uint64_t last, const Key& key) const {
    if (seen > last || last - seen > kKept) {
      return true; // not a number of ours, or too old to tell
    }
    for (auto sequence = seen + 1; sequence <= last; ++sequence) {
      const auto& sent = sent_[sequence % kKept];
      if (sent.sequence == sequence && Key{sent.group, sent.tag} == key) {
        return true;
      }
    }
    return false;
  }

  std::unordered_map<Key, Target, Hash> targets_;
  std::array<Sent, kKept> sent_;
};

} // namespace dlslime
