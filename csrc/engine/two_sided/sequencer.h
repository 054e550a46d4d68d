#pragma once

#include <map>

#include "interface/transport.h"

namespace dlslime {

// Restores the sender's order and drops what came twice, for routes that may
// reorder or repeat (several rails, a message sent again after a failure).
// On an ordered route it costs one comparison.
class Sequencer {
 public:
  enum class Verdict : uint8_t { kNow, kLater, kSeen };

  // kNow: handle it, then drain(). kLater: kept here. kSeen: a repetition.
  Verdict check(const MessageHeader& header, ByteSpan payload) {
    if (header.sequence == next_) {
      if (!early_.empty() && early_.begin()->first == next_) {
        takeFirst(); // it came again before its turn was noticed
      }
      ++next_;
      return Verdict::kNow;
    }
    if (header.sequence < next_) {
      return Verdict::kSeen;
    }
    const auto [place, isNew] = early_.try_emplace(header.sequence);
    if (isNew) {
      place->second = {header, Bytes(payload.begin(), payload.end())};
      keptBytes_ += costOf(payload.size());
    }
    return Verdict::kLater;
  }
  // Whether check() would say kNow.
  bool isNext(const MessageHeader& header) const {
    return header.sequence == next_;
  }
  // Calls `handle` for kept messages whose turn has come, for `most` of them.
  // True: there were some, and may be more.
  template <typename Handle>
  bool drain(int most, Handle&& handle) {
    int handled = 0;
    while (handled < most && !early_.empty() &&
           early_.begin()->first == next_) {
      const auto kept = takeFirst();
      ++next_;
      ++handled;
      handle(kept.first, ByteSpan(kept.second));
    }
    return handled > 0;
  }
  // Of the messages whose turn has come.
  uint64_t last() const {
    return next_ - 1;
  }
  // The sequence number near the next one that ends in these bits.
  uint64_t nearest(uint16_t bits) const {
    const auto ahead =
        static_cast<int16_t>(bits - static_cast<uint16_t>(next_));
    return next_ + static_cast<uint64_t>(int64_t{ahead});
  }
  size_t kept() const {
    return early_.size();
  }
  // Their payloads, and their bookkeeping.
  size_t keptBytes() const {
    return keptBytes_;
  }

 private:
  using Kept = std::pair<MessageHeader, Bytes>;
  Kept takeFirst() {
    auto first = early_.extract(early_.begin());
    keptBytes_ -= costOf(first.mapped().second.size());
    return std::move(first.mapped());
  }
  static size_t costOf(size_t payload) {
    return payload + 160;
  }

  uint64_t next_ = 1;
  size_t keptBytes_ = 0;
  std::map<uint64_t, Kept> early_;
};

} // namespace dlslime
