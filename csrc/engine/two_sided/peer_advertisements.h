#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "base/seeded_hash.h"
#include "interface/memory.h"
#include "interface/message.h"

namespace dlslime {

// The memory that one peer has offered for our next message of a group and
// tag (kRtr). An offer holds for the first message that the peer had not
// seen when it made it: so what was sent lately is kept here, too. An offer
// that is dropped does no harm: the message goes another way, and the peer
// sees that by its coming.
class PeerAdvertisements {
 public:
  struct Target {
    uint64_t id = 0; // the peer's
    RemoteBuffer memory;
    uint64_t capacity = 0; // bytes
  };

  // A tensor message has been sent.
  void noteSent(uint64_t group, uint32_t tag, uint64_t sequence) {
    sent_[sequence % kKept] = {sequence, group, tag};
  }
  // kRtr has come, after `last` messages of all kinds were sent.
  void offer(const MessageHeader& ready, uint64_t last) {
    const Key key{ready.group, ready.tag};
    if (targets_.size() < kMostTargets && !sentSince(ready.offset, last, key)) {
      targets_[key] = {
          ready.id, {ready.address, {ready.key}, ready.slot}, ready.length};
    }
  }
  // Null: none.
  const Target* find(uint64_t group, uint32_t tag) const {
    if (targets_.empty()) {
      return nullptr;
    }
    const auto found = targets_.find({group, tag});
    return found == targets_.end() ? nullptr : &found->second;
  }
  void drop(uint64_t group, uint32_t tag) {
    if (!targets_.empty()) { // most often, and always where nothing is pushed
      targets_.erase({group, tag});
    }
  }
  // The peer takes it back.
  void retract(const MessageHeader& header) {
    const auto* const target = find(header.group, header.tag);
    if (target != nullptr && target->id == header.id) {
      drop(header.group, header.tag);
    }
  }
  void clear() {
    targets_.clear();
  }

 private:
  // More on their way than a ring holds are not expected.
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
      return true; // not a number of ours, or too long ago to tell
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
