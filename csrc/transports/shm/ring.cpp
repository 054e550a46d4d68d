#include "transports/shm/ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/memory/stream_copy.h"

namespace dlslime::shm {

namespace {
constexpr MessageType kGoToStart{};
}

bool RingProducer::ensure(size_t bytes) {
  if (tail_ + bytes - knownHead_ <= size_) {
    return true;
  }
  const auto head = control_.head.load(std::memory_order_acquire);
  // A head beyond the tail or behind an earlier head comes from a faulty
  // consumer; then nothing fits.
  if (head > tail_ || head < knownHead_) {
    return false;
  }
  knownHead_ = head;
  return tail_ + bytes - knownHead_ <= size_;
}

bool RingProducer::claim(size_t bytes) {
  if (ensure(bytes)) {
    return true;
  }
  // The consumer looks at the flag after moving the head, and the producer
  // looks at the head after setting the flag: at least one of them sees the
  // change of the other.
  control_.producerWaits.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return ensure(bytes);
}

bool RingProducer::push(const MessageHeader& header, ByteSpan payload) {
  const size_t need = recordBytes(payload.size());
  const size_t skip = skipBefore(need);
  if (!claim(skip + need)) {
    return false;
  }
  if (skip != 0) {
    MessageHeader marker;
    marker.type = kGoToStart;
    std::memcpy(buffer_ + tail_ % size_, &marker, sizeof(marker));
    tail_ += skip;
  }
  std::byte* const record = buffer_ + tail_ % size_;
  MessageHeader stamped = header;
  stamped.payloadSize = static_cast<uint32_t>(payload.size());
  std::memcpy(record, &stamped, sizeof(stamped));
  if (!payload.empty()) {
    streamCopy(record + sizeof(stamped), payload.data(), payload.size());
    publishStores();
  }
  tail_ += need;
  control_.tail.store(tail_, std::memory_order_release);
  return true;
}

// Discards free space only: the consumer does not read free space, and the
// producer alone writes to the ring.
void RingProducer::trim() {
  static_cast<void>(ensure(size_)); // updates knownHead_
  const uint64_t end = knownHead_ + size_;
  const uint64_t wrap = (tail_ / size_ + 1) * size_;
  discard(tail_, std::min(end, wrap));
  discard(wrap, std::max(end, wrap));
  trimmedAt_ = knownHead_;
}

// Gives whole pages between two positions back to the kernel; the range must
// not wrap in the buffer.
void RingProducer::discard(uint64_t from, uint64_t to) {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = (from + page - 1) / page * page;
  const uint64_t last = to / page * page;
  if (first < last) {
    // If the kernel refuses, the pages merely stay.
    madvise(buffer_ + first % size_, last - first, MADV_REMOVE);
  }
}

RingConsumer::Next RingConsumer::peek(
    MessageHeader& header,
    ByteSpan& payload) {
  if (knownTail_ == head_) {
    const auto tail = control_.tail.load(std::memory_order_acquire);
    if (tail == head_) {
      return Next::kNone;
    }
    if (tail < head_ || tail - head_ > size_ || tail % kCacheLine != 0) {
      return Next::kBroken;
    }
    knownTail_ = tail;
  }
  const size_t place = head_ % size_;
  std::memcpy(&header, buffer_ + place, sizeof(header));
  if (header.type == kGoToStart) {
    if (place == 0 || size_ - place > knownTail_ - head_) {
      return Next::kBroken;
    }
    head_ += size_ - place;
    control_.head.store(head_, std::memory_order_release);
    return peek(header, payload);
  }
  current_ = recordBytes(header.payloadSize);
  if (header.payloadSize > maxRingPayload(size_) ||
      current_ > knownTail_ - head_ || place + current_ > size_) {
    return Next::kBroken;
  }
  payload = {buffer_ + place + sizeof(header), header.payloadSize};
  return Next::kMessage;
}

void RingConsumer::pop() {
  head_ += current_;
  control_.head.store(head_, std::memory_order_release);
}

bool RingConsumer::takeProducerWaits() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return control_.producerWaits.load(std::memory_order_relaxed) != 0 &&
      control_.producerWaits.exchange(0, std::memory_order_relaxed) != 0;
}

} // namespace dlslime::shm
