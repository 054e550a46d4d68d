#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "interface/memory.h"
#include "interface/message.h"

namespace dlslime::shm {

constexpr size_t kCacheLine = 64;

// Shared words of a ring. Positions count bytes since the beginning and never
// wrap; the place in the buffer is the position modulo the size of the buffer.
struct RingControl {
  alignas(kCacheLine) std::atomic<uint64_t> tail; // written by the producer
  alignas(kCacheLine) std::atomic<uint64_t> head; // written by the consumer
  // Set by a producer without room; the consumer rings the producer's doorbell
  // after freeing some.
  alignas(kCacheLine) std::atomic<uint32_t> producerWaits;
};

// Bytes of a record: a header of a cache line and the payload, contiguous and
// padded to whole cache lines. A header of type 0 sends the consumer to the
// start of the buffer.
constexpr size_t recordBytes(size_t payload) {
  return sizeof(MessageHeader) +
      (payload + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// Largest payload of a message. Four records fit into a ring, so that a message
// never has to wait for an empty ring.
constexpr size_t maxRingPayload(size_t ringBytes) {
  return ringBytes / 4 - sizeof(MessageHeader);
}

class RingProducer {
 public:
  RingProducer(RingControl& control, std::byte* buffer, size_t size)
      : control_(control), buffer_(buffer), size_(size) {}

  // Returns false if the ring has no room now; the consumer rings after freeing
  // some.
  [[nodiscard]] bool hasRoom(size_t payload) {
    return claim(sizeWithSkip(payload));
  }
  [[nodiscard]] bool push(const MessageHeader& header, ByteSpan payload);
  // Bytes of the buffer in use: written since the last trim(), or unread at the
  // time.
  size_t touched() const {
    return std::min<uint64_t>(tail_ - trimmedAt_, size_);
  }
  // Gives pages without unread records back to the kernel.
  void trim();

 private:
  bool ensure(size_t bytes);
  bool claim(size_t bytes);
  // Bytes to skip up to the start of the buffer if the record does not fit
  // before the end; else 0.
  size_t skipBefore(size_t record) const {
    const size_t place = tail_ % size_;
    return place + record > size_ ? size_ - place : 0;
  }
  size_t sizeWithSkip(size_t payload) const {
    return skipBefore(recordBytes(payload)) + recordBytes(payload);
  }
  void discard(uint64_t from, uint64_t to);

  RingControl& control_;
  std::byte* const buffer_;
  const size_t size_;
  uint64_t tail_ = 0;
  uint64_t knownHead_ = 0; // may be old, never ahead of the real head
  uint64_t trimmedAt_ = 0;
};

class RingConsumer {
 public:
  RingConsumer(RingControl& control, std::byte* buffer, size_t size)
      : control_(control), buffer_(buffer), size_(size) {}

  enum class Next : uint8_t { kNone, kMessage, kBroken };
  // Finds the oldest record not popped; `payload` points into the ring.
  // kBroken: a faulty producer wrote an impossible record.
  Next peek(MessageHeader& header, ByteSpan& payload);
  // Frees the record returned by peek().
  void pop();
  // Returns true, and clears the flag, if the producer waits for room. Call
  // after pop().
  bool takeProducerWaits();
  bool empty() const {
    return control_.tail.load(std::memory_order_acquire) == head_;
  }

 private:
  RingControl& control_;
  std::byte* const buffer_;
  const size_t size_;
  uint64_t head_ = 0;
  uint64_t knownTail_ = 0;
  size_t current_ = 0; // bytes of the peeked record
};

} // namespace dlslime::shm
