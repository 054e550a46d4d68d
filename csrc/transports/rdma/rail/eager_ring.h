#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace dlslime::rdma {

// A ring of records in the receiver's memory, written by the sender with RDMA
// WRITE and an immediate for each record. Records occupy whole units, so a ring
// of n units never holds more than n records, and n posted receives always
// suffice.
constexpr size_t kRingUnit = 1024;
constexpr uint32_t kRingUnits = 1024;
constexpr size_t kRingBytes = kRingUnit * kRingUnits;
// Largest record, about a sixteenth of the ring, so that several fit at a time:
// a payload of 64 KiB with its header.
constexpr size_t kMostRecordBytes = kRingBytes / 16 + kRingUnit;

constexpr uint32_t unitsOf(size_t bytes) {
  return static_cast<uint32_t>((bytes + kRingUnit - 1) / kRingUnit);
}

// Bits of an immediate. Without either bit, an immediate is the position of a
// record. With kCreditBit, everything before the given position has been
// consumed. With kPushBit, a push has landed: 14 bits are the slot, the low 16
// bits are the last bits of the sequence number. Positions count units since
// the beginning, modulo 2^30.
constexpr uint32_t kCreditBit = 0x80000000;
constexpr uint32_t kPushBit = 0x40000000;
constexpr uint32_t kPositionMask = kPushBit - 1;
// First position of a connection: close below the wrap-around, so that every
// connection soon wraps.
constexpr uint32_t kFirstPosition = kPositionMask + 1 - 4 * kRingUnits;

// The sender's view of the ring: the next position, and the free room.
class RingProducer {
 public:
  // Returns whether a record of `bytes` bytes fits now.
  bool fits(size_t bytes) const {
    const uint32_t units = unitsOf(bytes);
    return used() + skipBefore(units) + units <= kRingUnits;
  }
  // Returns the position of the new record, or nothing without room. Skips the
  // end of the ring if the record does not fit in front of it.
  std::optional<uint32_t> reserve(size_t bytes) {
    if (!fits(bytes)) {
      return std::nullopt;
    }
    const uint32_t units = unitsOf(bytes);
    const uint32_t position = (head_ + skipBefore(units)) & kPositionMask;
    begins_.set(head_ % kRingUnits); // the skipped end, too
    begins_.set(position % kRingUnits);
    head_ = (position + units) & kPositionMask;
    return position;
  }
  // Frees all units before `position`, which the receiver has consumed. Returns
  // false if `position` is not the end of a sent record: when the connection
  // breaks, unconfirmed() reads headers from `position` on, and must not take
  // payload for a header.
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
  // head() is the position of the next record, if the record fits in front of
  // the ring's end; tail() is the position of the oldest record not known to be
  // consumed.
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
  // The units in use at which a record or a skipped end begins.
  std::bitset<kRingUnits> begins_;
};

// The receiver's view of the ring.
class RingConsumer {
 public:
  // Returns whether a record may begin at `position` now: at the end of the
  // last record, or at the ring's start when the sender skipped the end.
  bool expects(uint32_t position) const {
    const uint32_t skipped = (position - next_) & kPositionMask;
    return skipped == 0 ||
        (position % kRingUnits == 0 && skipped < kRingUnits &&
         next_ % kRingUnits + skipped == kRingUnits);
  }
  void consume(uint32_t position, size_t bytes) {
    next_ = (position + unitsOf(bytes)) & kPositionMask;
  }
  // Returns the position for the sender, once a quarter of the ring has been
  // consumed since the last credit.
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
