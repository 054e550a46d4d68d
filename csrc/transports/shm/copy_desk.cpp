#include "transports/shm/copy_desk.h"

#include <algorithm>
#include <bit>

namespace dlslime::shm {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHalvesUpTo = 512 * 1024;
constexpr size_t kLeastPiece = 256 * 1024;
constexpr size_t kMostPiece = 1024 * 1024;

struct Word {
  uint16_t epoch, total, front, back;
};

Word unpack(uint64_t word) {
  return {
      static_cast<uint16_t>(word >> 48),
      static_cast<uint16_t>(word >> 32),
      static_cast<uint16_t>(word >> 16),
      static_cast<uint16_t>(word)};
}

uint64_t pack(Word word) {
  return (static_cast<uint64_t>(word.epoch) << 48) |
      (static_cast<uint64_t>(word.total) << 32) |
      (static_cast<uint64_t>(word.front) << 16) | word.back;
}

uint32_t taken(Word word) {
  return static_cast<uint32_t>(word.front) + word.back;
}

} // namespace

size_t pieceBytes(size_t length) {
  if (length <= kHalvesUpTo) {
    return (length / 2 + kPage - 1) / kPage * kPage + kPage * (length < 2);
  }
  size_t piece = std::clamp(std::bit_ceil(length / 8), kLeastPiece, kMostPiece);
  while ((length + piece - 1) / piece > kMaxPieces) {
    piece *= 2; // messages over 64 GiB
  }
  return piece;
}

uint32_t pieceCount(size_t length) {
  const size_t piece = pieceBytes(length);
  return static_cast<uint32_t>((length + piece - 1) / piece);
}

void openDesk(
    CopyDesk& desk,
    uint64_t id,
    uint64_t destination,
    uint64_t length) {
  desk.id.store(id, std::memory_order_relaxed);
  desk.destination.store(destination, std::memory_order_relaxed);
  desk.length.store(length, std::memory_order_relaxed);
  desk.done.store(0, std::memory_order_relaxed);
  desk.error.store(0, std::memory_order_relaxed);
  const auto old = unpack(desk.word.load(std::memory_order_relaxed));
  desk.word.store(
      pack(
          {static_cast<uint16_t>(old.epoch + 1),
           static_cast<uint16_t>(pieceCount(length)),
           0,
           0}),
      std::memory_order_release);
}

std::optional<uint32_t> takeFront(CopyDesk& desk) {
  auto seen = desk.word.load(std::memory_order_acquire);
  for (;;) {
    auto word = unpack(seen);
    if (taken(word) >= word.total) {
      return std::nullopt;
    }
    const uint32_t piece = word.front++;
    if (desk.word.compare_exchange_weak(
            seen, pack(word), std::memory_order_acq_rel)) {
      return piece;
    }
  }
}

std::optional<uint32_t> takeBack(CopyDesk& desk) {
  auto seen = desk.word.load(std::memory_order_acquire);
  for (;;) {
    auto word = unpack(seen);
    if (taken(word) >= word.total) {
      return std::nullopt;
    }
    ++word.back;
    const uint32_t piece = static_cast<uint32_t>(word.total) - word.back;
    if (desk.word.compare_exchange_weak(
            seen, pack(word), std::memory_order_acq_rel)) {
      return piece;
    }
  }
}

void closeDesk(CopyDesk& desk) {
  auto seen = desk.word.load(std::memory_order_acquire);
  for (;;) {
    auto word = unpack(seen);
    word.total = static_cast<uint16_t>(taken(word));
    if (desk.word.compare_exchange_weak(
            seen, pack(word), std::memory_order_acq_rel)) {
      return;
    }
  }
}

DeskState deskState(const CopyDesk& desk) {
  const auto word = unpack(desk.word.load(std::memory_order_acquire));
  return {word.total, taken(word), desk.done.load(std::memory_order_acquire)};
}

void finishPiece(CopyDesk& desk, int error) {
  if (error != 0) {
    desk.error.store(static_cast<uint32_t>(error), std::memory_order_relaxed);
  }
  desk.done.fetch_add(1, std::memory_order_acq_rel);
}

} // namespace dlslime::shm
