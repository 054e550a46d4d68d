#pragma once

#include <map>

#include "engine/progress/engine_mutex.h"
#include "interface/transport.h"

namespace dlslime {

// Restores the sender's order and drops repetitions, for routes that may
// reorder or repeat messages (several rails, messages sent again after a
// failure). Costs a comparison on an ordered route.
class Sequencer {
 public:
  enum class Verdict : uint8_t { kNow, kLater, kSeen };

  // kNow: the caller handles the message, then calls drain(). kLater: the
  // message is kept. kSeen: the message is a repetition.
  Verdict check(const MessageHeader& header, ByteSpan payload) {
    if (header.sequence == next_) {
      if (!early_.empty() && early_.begin()->first == next_) {
        takeFirst(); // came again before the kept message was drained
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
  // True if check() would return kNow.
  bool isNext(const MessageHeader& header) const {
    return header.sequence == next_;
  }
  // Calls `handle` for at most `most` kept messages whose turn has come. True
  // if any were handled: more may be left.
  template <typename Handle>
  bool drain(int most, Handle&& handle) REQUIRES(kEngineLock) {
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
  // Returns the number of the last message whose turn has come.
  uint64_t last() const {
    return next_ - 1;
  }
  // Returns the sequence number that ends in `bits` and is nearest to the next.
  uint64_t nearest(uint16_t bits) const {
    const auto ahead =
        static_cast<int16_t>(bits - static_cast<uint16_t>(next_));
    return next_ + static_cast<uint64_t>(int64_t{ahead});
  }
  size_t kept() const {
    return early_.size();
  }
  // Bytes of the kept messages, with bookkeeping.
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
