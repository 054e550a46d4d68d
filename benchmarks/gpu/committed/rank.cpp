#include "committed/rank.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace committed {

using namespace dlslime::cuda;

bool reached(const std::atomic<uint32_t>& word, uint32_t value) {
  return static_cast<int32_t>(word.load(std::memory_order_acquire) - value) >=
      0;
}

void spinUntil(
    const std::atomic<uint32_t>& word,
    uint32_t value,
    const Shared& shared) {
  for (uint64_t looks = 1; !reached(word, value); ++looks) {
    if (shared.failed != 0) {
      throw std::runtime_error("the peer has failed");
    }
    if (looks % 1024 == 0) {
      sched_yield(); // both ranks may share a core
    }
  }
}

Rank::Rank(Shared& shared, int rank, Way chosen, size_t memoryBytes)
    : number(rank), way(chosen), shared_(shared), receives_(kSlots) {
  int devices = 0;
  CALL(deviceGetCount, &devices);
  CALL(retainContext, &context_, number % std::max(devices, 1));
  CALL(setContext, context_);
  CALL(hostRegister, &shared_, sizeof(Shared), kRegisterPortableAndMapped);
  CALL(hostPointer, &base_, &shared_, 0);
  CALL(allocate, &memory_, memoryBytes);
  CALL(streamCreate, &copies_, kStreamNonBlocking, 0);
  for (auto& receive : receives_) {
    CALL(eventCreate, &receive.event, kEventDisableTiming);
  }
  openPeer();
  thread_ = std::thread([this] { run(); });
}

Rank::~Rank() {
  stopping_ = true;
  thread_.join();
}

void Rank::openPeer() {
  CALL(ipcGetHandle, &shared_.handles[number], memory_);
  barrier();
  CALL(
      ipcOpenHandle,
      &peerMemory_,
      shared_.handles[1 - number],
      kIpcLazyPeerAccess);
}

void Rank::barrier() {
  ++barriers_;
  shared_.arrived.fetch_add(1);
  spinUntil(shared_.arrived, 2 * barriers_, shared_);
}

DevicePointer Rank::addressOf(const std::byte* bytes) const {
  return base_ +
      static_cast<DevicePointer>(
             bytes - reinterpret_cast<const std::byte*>(&shared_));
}

DevicePointer Rank::addressOf(const std::atomic<uint32_t>& word) const {
  return addressOf(reinterpret_cast<const std::byte*>(&word));
}

void Rank::set(std::atomic<uint32_t>& word, uint32_t message, Stream stream) {
  CALL(writeValue, stream, addressOf(word), message, kWriteValueDefault);
}

void Rank::await(std::atomic<uint32_t>& word, uint32_t message, Stream stream) {
  CALL(waitValue, stream, addressOf(word), message, kWaitValueAtLeast);
}

uint32_t Rank::send(Stream stream, uint32_t offset, uint32_t size) {
  auto& to = theirs();
  const uint32_t message = ++sent_;
  const uint32_t slot = message % kSlots;
  set(to.words[slot].ready, message, stream);
  to.offsets[slot] = offset;
  to.sizes[slot] = size;
  to.posted.store(message, std::memory_order_release);
  return message;
}

uint32_t Rank::receive(Stream stream, uint32_t offset) {
  auto& from = mine();
  const uint32_t message = from.expected + 1;
  const uint32_t slot = message % kSlots;
  receives_[slot].offset = offset;
  set(from.words[slot].room, message, stream);
  from.expected.store(message, std::memory_order_release);
  return message;
}

void Rank::waitReceived(uint32_t message, Stream stream) {
  auto& from = mine();
  const uint32_t slot = message % kSlots;
  switch (way) {
    case Way::kCommitted:
      spinUntil(from.posted, message, shared_);
      commit(message);
      CALL(streamWaitEvent, stream, receives_[slot].event, 0);
      break;
    case Way::kOverWords:
      await(from.words[slot].done, message, stream);
      break;
    case Way::kHost:
      spinUntil(from.words[slot].done, message, shared_);
      break;
  }
}

void Rank::waitSent(uint32_t message, Stream stream) {
  auto& to = theirs();
  auto& done = to.words[message % kSlots].done;
  if (way == Way::kHost) {
    spinUntil(done, message, shared_);
    return;
  }
  if (way == Way::kCommitted) {
    to.wanted.store(message, std::memory_order_release);
    spinUntil(to.committed, message, shared_);
  }
  await(done, message, stream);
}

bool Rank::isHeld(uint32_t message) const {
  const auto& words = shared_.to[number].words[message % kSlots];
  return !reached(words.done, message);
}

void Rank::commit(uint32_t message) {
  auto& from = mine();
  const std::lock_guard<std::mutex> guard(committing_);
  for (uint32_t next = from.committed + 1; !reached(from.committed, message);
       ++next) {
    enqueueCopy(next);
    from.committed.store(next, std::memory_order_release);
  }
}

void Rank::copyInto(uint32_t slot) {
  const auto& from = mine();
  CALL(
      copy,
      memory_ + receives_[slot].offset,
      peerMemory_ + from.offsets[slot],
      from.sizes[slot],
      copies_);
}

// Everything awaited by the copy has been given to a driver before: both
// streams' words, when the message was posted at either end.
void Rank::enqueueCopy(uint32_t message) {
  const uint32_t slot = message % kSlots;
  auto& words = mine().words[slot];
  await(words.room, message, copies_);
  await(words.ready, message, copies_);
  copyInto(slot);
  set(words.done, message, copies_);
  CALL(eventRecord, receives_[slot].event, copies_);
}

// The copy waits for nothing: the processor has seen both words before.
void Rank::copyWhenReady(uint32_t message) {
  const uint32_t slot = message % kSlots;
  auto& words = mine().words[slot];
  if (!reached(words.ready, message) || !reached(words.room, message)) {
    return;
  }
  copyInto(slot);
  CALL(eventRecord, receives_[slot].event, copies_);
  while (driver().eventQuery(receives_[slot].event) == Result::kNotReady) {
    sched_yield();
  }
  words.done.store(message, std::memory_order_release);
  copied_ = message;
}

void Rank::run() {
  try {
    CALL(setContext, context_);
    way == Way::kCommitted ? runCommits() : runCopies();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d, its thread: %s\n", number, error.what());
    shared_.failed = 1;
  }
}

// Commits the messages that the peer waits for, without this rank's program.
void Rank::runCommits() {
  auto& from = mine();
  while (!stopping_) {
    const uint32_t wanted = std::min<uint32_t>(from.wanted, from.expected);
    if (!reached(from.committed, wanted)) {
      commit(wanted);
    }
    sched_yield();
  }
}

void Rank::runCopies() {
  auto& from = mine();
  while (!stopping_) {
    if (std::min<uint32_t>(from.posted, from.expected) > copied_) {
      copyWhenReady(copied_ + 1);
    }
    if (from.posted > filled_ && from.expected == 0) {
      fillWhenSent(filled_ + 1);
    }
    sched_yield();
  }
}

// Brings small messages as rings and NICs do: by a processor, into memory that
// the rank's streams can copy from.
void Rank::fillWhenSent(uint32_t message) {
  const uint32_t slot = message % kSlots;
  auto& words = mine().words[slot];
  if (!reached(words.set, message)) {
    return;
  }
  std::memcpy(
      shared_.filled[number][slot], shared_.slots[number][slot], kEagerBytes);
  words.done.store(message, std::memory_order_release);
  filled_ = message;
}

uint32_t Rank::sendSmall(Stream stream, uint32_t offset, uint32_t size) {
  const uint32_t message = ++small_;
  const uint32_t slot = message % kSlots;
  auto& to = theirs();
  CALL(
      copy,
      addressOf(shared_.slots[1 - number][slot]),
      memory_ + offset,
      size,
      stream);
  set(to.words[slot].set, message, stream);
  to.posted.store(message, std::memory_order_release);
  return message;
}

void Rank::receiveSmall(Stream stream, uint32_t offset, uint32_t size) {
  auto& from = mine();
  const uint32_t message = ++smallReceived_;
  const uint32_t slot = message % kSlots;
  spinUntil(from.posted, message, shared_);
  const bool direct = way == Way::kCommitted;
  auto& word = direct ? from.words[slot].set : from.words[slot].done;
  if (way == Way::kHost) {
    spinUntil(word, message, shared_);
  } else {
    await(word, message, stream);
  }
  const auto* const bytes =
      direct ? shared_.slots[number][slot] : shared_.filled[number][slot];
  CALL(copy, memory_ + offset, addressOf(bytes), size, stream);
}

} // namespace committed
