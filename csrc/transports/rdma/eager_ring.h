#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace dlslime::rdma {

// A ring of records in the receiver's memory that the sender writes by RDMA,
// one immediate each. Records are whole units, so a ring of n units never holds
// more than n of them: n posted receives are enough for ever.
constexpr size_t kRingUnit = 1024;
constexpr uint32_t kRingUnits = 1024;
constexpr size_t kRingBytes = kRingUnit * kRingUnits;
// About a sixteenth, so that a few are on their way at any time: a payload of
// 64 KiB with its header.
constexpr size_t kMostRecordBytes = kRingBytes / 16 + kRingUnit;

constexpr uint32_t unitsOf(size_t bytes) {
  return static_cast<uint32_t>((bytes + kRingUnit - 1) / kRingUnit);
}

// What an immediate tells: the position of a record; with one bit the position
// before which everything has been consumed; with the other one that a push
// has landed, in which slot (14 bits) and with which sequence number (its last
// 16 bits). Positions count units since the beginning, modulo 2^30.
constexpr uint32_t kCreditBit = 0x80000000;
constexpr uint32_t kPushBit = 0x40000000;
constexpr uint32_t kPositionMask = kPushBit - 1;
// Shortly before they wrap, so that every connection comes past it.
constexpr uint32_t kFirstPosition = kPositionMask + 1 - 4 * kRingUnits;

// The sender's view: where the next record goes, and whether there is room.
class RingProducer {
 public:
  // Whether there is room for a record of so many bytes.
  bool fits(size_t bytes) const {
    const uint32_t units = unitsOf(bytes);
    return used() + skipBefore(units) + units <= kRingUnits;
  }
  // Its position, skipping the ring's end where it does not fit; nothing if
  // there is no room.
  std::optional<uint32_t> reserve(size_t bytes) {
    if (!fits(bytes)) {
      return std::nullopt;
    }
    const uint32_t units = unitsOf(bytes);
    const uint32_t position = (head_ + skipBefore(units)) & kPositionMask;
    begins_.set(head_ % kRingUnits); // of what is skipped, too
    begins_.set(position % kRingUnits);
    head_ = (position + units) & kPositionMask;
    return position;
  }
  // The receiver has consumed everything before `position`. False: that can't
  // be, since it is not the end of a record. What is behind it is read again
  // when the connection breaks, and the middle of a record is its payload.
  bool credit(uint32_t position) {
    const uint32_t consumed = (position - tail_) & kPositionMask;
    if (consumed > used() ||
        (position != head_ && !begins_.test(position % kRingUnits))) {
      return false;
    }
    for (; tail_ != position; tail_ = (tail_ + 1) & kPositionMask) {
      begins_.reset(tail_ % kRingUnits);
    }
    return true;
  }
  uint32_t used() const {
    return (head_ - tail_) & kPositionMask;
  }
  // Where the next record goes, if it fits; and where the oldest one is that
  // may not have been consumed.
  uint32_t head() const {
    return head_;
  }
  uint32_t tail() const {
    return tail_;
  }

 private:
  uint32_t skipBefore(uint32_t units) const {
    const uint32_t place = head_ % kRingUnits;
    return place + units > kRingUnits ? kRingUnits - place : 0;
  }

  uint32_t head_ = kFirstPosition, tail_ = kFirstPosition;
  std::bitset<kRingUnits> begins_; // units where records begin, of those in use
};

// The receiver's view.
class RingConsumer {
 public:
  // Whether a record may begin at `position` now: where the last one ended, or
  // at the ring's start if the end was skipped.
  bool expects(uint32_t position) const {
    const uint32_t skipped = (position - next_) & kPositionMask;
    return skipped == 0 ||
        (position % kRingUnits == 0 && skipped < kRingUnits &&
         next_ % kRingUnits + skipped == kRingUnits);
  }
  void consume(uint32_t position, size_t bytes) {
    next_ = (position + unitsOf(bytes)) & kPositionMask;
  }
  // The position to tell the sender when a quarter has been consumed since the
  // last time.
  std::optional<uint32_t> takeCredit() {
    if (((next_ - told_) & kPositionMask) < kRingUnits / 4) {
      return std::nullopt;
    }
    told_ = next_;
    return next_;
  }

 private:
  uint32_t next_ = kFirstPosition, told_ = kFirstPosition;
};

static_assert((uint64_t{kPositionMask} + 1) % kRingUnits == 0);

} // namespace dlslime::rdma
