#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "interface/accelerator.h"
#include "interface/memory.h"

namespace dlslime {

class MemoryRegistrar;
class Operation;
using OperationPtr = std::shared_ptr<Operation>;

// One send, receive or one-sided transfer, from post to completion. The caller
// and the engine share it; it ends exactly once, with a Status.
//
// Whoever derives from it keeps the memory of `view` alive until
// releaseMemory(), even if every other handle is dropped: the engine holds
// the operation for as long as anything may touch that memory.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  enum class Kind : uint8_t { kSend, kReceive, kRead, kWrite };
  static constexpr int kAnySource = -1;

  // Where the operation is; what cancelling it takes depends on it.
  enum class Stage : uint8_t {
    kNew,
    kHeld, // its stream has not come there, or one before it is held
    kAwaitingPeer, // all but receives: the pair is not connected yet
    kPosted, // receive: in the matcher, perhaps offered to its peer
    kQueued, // send: waits for room on the route
    kAnnounced, // send: the peer was told, and has not matched or not finished
    kPushing, // send: being written into the receiver's memory
    kPulling, // receive: the bytes are on their way
    kTransferring, // read, write: the pair's RmaInitiator has it
    kDone,
  };

  // `peer` is a rank in the group; kAnySource only for receives.
  Operation(Kind kind, int peer, uint32_t tag, MemoryView view)
      : kind_(kind), peer_(peer), tag_(tag), view_(view) {}
  virtual ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  Kind kind() const {
    return kind_;
  }
  bool oneSided() const {
    return kind_ == Kind::kRead || kind_ == Kind::kWrite;
  }
  int peer() const {
    return peer_;
  }
  // For texts: "rank 1", or "the peer" of a pair.
  std::string nameOf(int rank) const;
  uint32_t tag() const {
    return tag_;
  }
  size_t size() const {
    return view_.size;
  }
  // It is on memory of a GPU, whose caller's streams wait for it.
  bool ofDevice() const {
    return view_.onDevice();
  }
  // Where its bytes are for those who move them, until it ends.
  MemoryView view() const;

  // Any thread. Once true, a receive's bytes are visible to the caller and a
  // send's memory may be overwritten.
  bool done() const noexcept {
    return done_.load(std::memory_order_acquire);
  }
  // The next three only once done, the status once decided.
  const Status& status() const noexcept {
    const auto* const late = late_.load(std::memory_order_acquire);
    return late != nullptr ? *late : status_;
  }
  int source() const noexcept {
    return source_;
  }
  size_t bytes() const noexcept {
    return bytes_;
  }

  // Any thread. It has failed, however it ends or has ended: a receiver refused
  // the send afterwards, or nobody could wait any longer. Counts once.
  void failLate(Status why);
  // Any thread. It has a status, if not yet its end.
  bool decided() const noexcept {
    return late_.load(std::memory_order_acquire) != nullptr || done();
  }

  // Any thread; exactly once, on the thread that completes the operation and
  // outside the engine's lock, or at once if it is done already.
  void onDone(std::function<void()> callback);
  // Any thread. A stream waits until it is done, and no longer: the engine's
  // next call to the driver may wait for that stream, so it is before that.
  void letGoWhenDone(std::shared_ptr<Accelerator::StreamBlock> hold);

  // "recv from rank 1 tag 7 (4096 bytes)"
  virtual std::string describe() const;

  // --- For the engine, under its lock ------------------------------------

  // First half of completion: from here on done() is true.
  void settle(Status status);
  // Before that, or after it if the caller was told early: nothing touches its
  // memory any more.
  virtual void over() {}
  // Second half, outside the lock, because freeing memory and callbacks run
  // code that we don't know (a tensor's deleter may want the GIL).
  void runCallbacks();
  void release();

  Stage stage = Stage::kNew;
  // kAnnounced, kPushing, kPulling, kPosted if offered: the channel's number
  uint64_t transferId = 0;
  void* holder = nullptr; // kQueued, kAnnounced, kPushing: the Outbound that
                          // has it; kPulling, kPosted if offered: the Inbound;
                          // kTransferring: the RmaInitiator
  // For whoever registers the memory without the lock: if release() comes
  // meanwhile, letMemoryGo(), not under the lock either, does its work.
  // False: somebody does that already, who is to be left alone.
  bool keepMemory() {
    auto own = Memory::kOwn;
    return memory_.compare_exchange_strong(
        own, Memory::kKept, std::memory_order_relaxed);
  }
  void letMemoryGo();
  std::shared_ptr<const void> prepared; // what this one has made of the memory
  MemoryRegistrar* preparedBy = nullptr;
  std::unique_ptr<OnDevice> onDevice; // null: memory of processors
  uint64_t groupKey = 0; // the engine's id of the group
  std::array<std::shared_ptr<Operation>, 2> nextEnded; // see EndedQueue
  bool inPair = false; // of processes that have not given each other ranks
  uint64_t order = 0; // posting order among the receives of a group
  Status cancelStatus; // not ok: the caller gave up, with this status
  bool memoryInUse = false; // done, but a peer may still touch the memory
  OperationPtr follower; // ends when this one does: the transfer of a note
  void setResult(int source, size_t bytes) {
    source_ = source;
    bytes_ = bytes;
  }

 protected:
  // Drops what keeps the memory alive. Called once, outside the lock.
  virtual void releaseMemory() {}

 private:
  friend class OperationQueue;
  enum class Memory : uint8_t { kOwn, kKept, kKeptAfterEnd };
  void letGo();
  void releaseNow();

  const Kind kind_;
  const int peer_;
  const uint32_t tag_;
  const MemoryView view_;
  std::atomic<bool> done_{false};
  Status status_;
  std::atomic<const Status*> late_{nullptr}; // owned; set once
  int source_ = kAnySource;
  size_t bytes_ = 0;
  OperationPtr next_; // see OperationQueue
  Operation* previous_ = nullptr; // null: the first one, or in no queue

  std::atomic<Memory> memory_{Memory::kOwn};

  std::mutex callbackMutex_;
  bool settled_ = false; // guarded by callbackMutex_
  std::vector<std::function<void()>> callbacks_; // guarded by callbackMutex_
  // Guarded by callbackMutex_.
  std::vector<std::shared_ptr<Accelerator::StreamBlock>> holds_;
  std::atomic<bool> held_{false}; // some were added
};

// For texts: tags from 2^31 on are our own, which no caller knows.
std::string tagName(uint32_t tag);

// First in, first out, linked through the operations: no allocation. An
// operation is in one queue at a time.
class OperationQueue {
 public:
  OperationQueue() = default;
  OperationQueue(OperationQueue&& other) noexcept
      : head_(std::move(other.head_)),
        tail_(std::exchange(other.tail_, nullptr)) {}
  OperationQueue& operator=(OperationQueue&&) = delete;
  ~OperationQueue() {
    while (pop()) { // not recursively: chains can be long
    }
  }

  bool empty() const {
    return head_ == nullptr;
  }
  const OperationPtr& front() const {
    return head_;
  }
  void push(OperationPtr operation) {
    Operation* raw = operation.get();
    raw->previous_ = tail_;
    (tail_ != nullptr ? tail_->next_ : head_) = std::move(operation);
    tail_ = raw;
  }
  OperationPtr pop();
  template <typename Visit>
  void forEach(Visit&& visit) const {
    for (const Operation* at = head_.get(); at != nullptr;
         at = at->next_.get()) {
      visit(const_cast<Operation*>(at)->shared_from_this());
    }
  }
  // False if it is in no queue; it is in no other one.
  bool remove(Operation* operation);

 private:
  OperationPtr head_;
  Operation* tail_ = nullptr;
};

// The same of operations that have ended, of which each is in each of two such
// queues at most once: told early (0), and with its memory to be let go (1).
class EndedQueue {
 public:
  explicit EndedQueue(size_t which) : which_(which) {}
  EndedQueue(EndedQueue&& other) noexcept
      : which_(other.which_),
        head_(std::move(other.head_)),
        tail_(std::exchange(other.tail_, nullptr)) {}
  EndedQueue& operator=(EndedQueue&&) = delete;
  ~EndedQueue() {
    while (pop()) {
    }
  }

  bool empty() const {
    return head_ == nullptr;
  }
  void push(OperationPtr operation) noexcept {
    Operation* raw = operation.get();
    auto& next = tail_ != nullptr ? tail_->nextEnded[which_] : head_;
    next = std::move(operation);
    tail_ = raw;
  }
  // Null: there is none.
  OperationPtr pop() noexcept {
    auto first = std::move(head_);
    if (first != nullptr) {
      head_ = std::move(first->nextEnded[which_]);
      tail_ = head_ == nullptr ? nullptr : tail_;
    }
    return first;
  }

 private:
  const size_t which_;
  OperationPtr head_;
  Operation* tail_ = nullptr;
};

} // namespace dlslime
