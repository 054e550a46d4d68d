#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "interface/memory.h"
#include "interface/message.h"

namespace dlslime::shm {

constexpr size_t kCacheLine = 64;

// The shared words of a ring. Positions count bytes since the beginning and
// never wrap; the place in the buffer is the position modulo its size.
struct RingControl {
  alignas(kCacheLine) std::atomic<uint64_t> tail; // written by the producer
  alignas(kCacheLine) std::atomic<uint64_t> head; // written by the consumer
  // Set by a producer that found no room: the consumer rings its doorbell
  // after making some.
  alignas(kCacheLine) std::atomic<uint32_t> producerWaits;
};

// A record is a header line and its payload, padded to whole cache lines and
// contiguous. A header of type 0 means: go on at the start of the buffer.
constexpr size_t recordBytes(size_t payload) {
  return sizeof(MessageHeader) +
      (payload + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// The largest payload of a ring: four records fit, so that one message never
// has to wait for an empty ring.
constexpr size_t maxRingPayload(size_t ringBytes) {
  return ringBytes / 4 - sizeof(MessageHeader);
}

class RingProducer {
 public:
  RingProducer(RingControl& control, std::byte* buffer, size_t size)
      : control_(control), buffer_(buffer), size_(size) {}

  // False: no room; the consumer will ring once there is some.
  [[nodiscard]] bool hasRoom(size_t payload) {
    return claim(sizeWithSkip(payload));
  }
  [[nodiscard]] bool push(const MessageHeader& header, ByteSpan payload);
  // What has been written to since trim(), in bytes: memory in use.
  size_t touched() const {
    return std::min<uint64_t>(tail_ - trimmedAt_, size_);
  }
  // Gives the pages back to the kernel that hold nothing unread.
  void trim();

 private:
  bool ensure(size_t bytes);
  bool claim(size_t bytes);
  // Up to the start of the buffer, where a record does not fit before its end.
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
  uint64_t knownHead_ = 0; // may be old, never ahead of the truth
  uint64_t trimmedAt_ = 0;
};

class RingConsumer {
 public:
  RingConsumer(RingControl& control, std::byte* buffer, size_t size)
      : control_(control), buffer_(buffer), size_(size) {}

  enum class Next : uint8_t { kNone, kMessage, kBroken };
  // The oldest record that is still there; `payload` points into the ring.
  // kBroken: the producer wrote what no producer of ours would write.
  Next peek(MessageHeader& header, ByteSpan& payload);
  // Frees the record that peek() returned.
  void pop();
  // True once after a producer found no room and pop() has made some since.
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
