#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/library/api.h"
#include "base/status.h"
#include "base/threads/mutex.h"
#include "interface/accelerator.h"
#include "interface/memory.h"

namespace dlslime {

class MemoryRegistrar;
class Registration;
class Operation;
using OperationPtr = std::shared_ptr<Operation>;

// Part of the engine in charge of an operation under way. Under the engine's
// lock.
class OperationHolder {
 public:
  // Ends the operation with `why`: immediately, or once nothing touches the
  // memory any more.
  virtual void cancel(const OperationPtr& operation, const Status& why) = 0;

 protected:
  ~OperationHolder() = default;
};

// A send, receive or one-sided transfer, from post to completion. The caller
// and the engine share ownership; the operation ends exactly once, with a
// Status.
//
// A derived class keeps the memory of `view` alive until releaseMemory(), even
// after all callers have dropped their handles: the engine holds the operation
// for as long as anything may touch the memory.
class DLSLIME_API Operation : public std::enable_shared_from_this<Operation> {
 public:
  enum class Kind : uint8_t { kSend, kReceive, kRead, kWrite };
  static constexpr int kAnySource = -1;

  // Progress of the operation, which determines the way to cancel.
  enum class Stage : uint8_t {
    kNew,
    // The stream has not come to the operation, or an earlier operation is
    // held.
    kHeld,
    kAwaitingPeer, // except receives: the pair is not connected yet
    kPosted, // receive: in the matcher, perhaps advertised
    kQueued, // send: waits for room on the route
    kAnnounced, // send: RTS sent, FIN not received
    kPushing, // send: being written into the receiver's memory
    kPulling, // receive: the bytes are on the way
    kTransferring, // read, write: in the pair's RmaInitiator
    kDone,
  };

  // `peer` is a rank in the group; kAnySource is for receives only.
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
  // Returns "rank 1", or "the peer" in a pair without ranks; for texts.
  std::string nameOf(int rank) const;
  uint32_t tag() const {
    return tag_;
  }
  size_t size() const {
    return view_.size;
  }
  // Returns true for a message in memory of a GPU: streams of the caller wait
  // for the operation.
  bool ofDevice() const {
    return view_.onDevice();
  }
  // Returns the memory from or to which the bytes move, until the operation
  // ends: pinned memory for a staged send.
  MemoryView view() const;

  // Returns true once the operation has ended. After success, a receive's bytes
  // are visible to the caller and a send's memory may be overwritten. Any
  // thread.
  bool done() const noexcept {
    return done_.load(std::memory_order_acquire);
  }
  // Call only once decided().
  const Status& status() const noexcept {
    const auto* const late = late_.load(std::memory_order_acquire);
    return late != nullptr ? *late : status_;
  }
  // Call only once done().
  int source() const noexcept {
    return source_;
  }
  // Call only once done().
  size_t bytes() const noexcept {
    return bytes_;
  }

  // Makes `why` the status, whether the operation is still under way or has
  // ended: the receiver refused a send afterwards, or a waiting stream has run
  // out of time. Only the first call counts. Any thread.
  void failLate(Status why);
  // Returns true once the status is known, perhaps before the end. Any thread.
  bool decided() const noexcept {
    return late_.load(std::memory_order_acquire) != nullptr || done();
  }

  // Has `callback` called exactly once, without the engine's lock: on the
  // thread completing the operation, or at once if callbacks have run already.
  // Any thread.
  void onDone(std::function<void()> callback);
  // Releases a waiting stream when the operation is done, within settle(): the
  // engine's next driver call may wait for the stream. Any thread.
  void letGoWhenDone(std::shared_ptr<Accelerator::StreamBlock> hold);

  // Type of the elements, for flight records: a number of the caller's (torch's
  // ScalarType), which the engine only keeps.
  uint8_t elementType = 0;

  // Returns "recv from rank 1 tag 7 (4096 bytes)".
  virtual std::string describe() const;

  // --- For the engine, under its lock ------------------------------------

  // First half of completion: makes done() true.
  void settle(Status status);
  // Called when nothing touches the memory any more: just before settle(), or
  // later if the caller was told early.
  virtual void over() {}
  // Runs the callbacks: second half of completion, without the engine's lock
  // because callbacks are unknown code.
  void runCallbacks();
  // Frees the memory, or leaves that to letMemoryGo(): second half of
  // completion, without the engine's lock because deleters are unknown code (a
  // tensor's may want the GIL).
  void release();

  Stage stage = Stage::kNew;
  // The channel's number of the operation, for kQueued, kAnnounced, kPushing
  // and kPulling, and for kPosted when advertised.
  uint64_t transferId = 0;
  // Null before the first holder, and for a receive in the matcher alone.
  OperationHolder* holder = nullptr;
  // Keeps the memory for a thread that registers the memory without the
  // engine's lock: a release() meanwhile leaves freeing to letMemoryGo().
  // Returns false if a thread is keeping the memory already; the caller must
  // then leave the operation alone.
  bool keepMemory() {
    auto own = Memory::kOwn;
    return memory_.compare_exchange_strong(
        own, Memory::kKept, std::memory_order_relaxed);
  }
  // Ends keepMemory(). Not under the engine's lock, because freeing may follow.
  void letMemoryGo();
  std::shared_ptr<const Registration>
      prepared; // registration made by preparedBy
  MemoryRegistrar* preparedBy = nullptr;
  std::unique_ptr<OnDevice> onDevice; // null: memory of processors
  uint64_t groupKey = 0; // the engine's id of the group
  uint64_t record = 0; // number of the flight record; 0: none
  std::array<std::shared_ptr<Operation>, 2> nextEnded; // see EndedQueue
  bool inPair = false; // between processes without ranks
  uint64_t order = 0; // posting order among the receives of a group
  Status cancelStatus; // not ok: cancelled, to end with the status
  bool memoryInUse = false; // done, but a peer may still touch the memory
  OperationPtr follower; // of a note: the transfer, which ends with the note
  void setResult(int source, size_t bytes) {
    source_ = source;
    bytes_ = bytes;
  }

 protected:
  // Drops the references that keep the memory alive. Called once, without the
  // engine's lock.
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
  Operation* previous_ = nullptr; // null: first, or in no queue

  std::atomic<Memory> memory_{Memory::kOwn};

  Mutex callbackMutex_;
  bool settled_ GUARDED_BY(callbackMutex_) = false;
  std::vector<std::function<void()>> callbacks_ GUARDED_BY(callbackMutex_);
  std::vector<std::shared_ptr<Accelerator::StreamBlock>> holds_
      GUARDED_BY(callbackMutex_);
  std::atomic<bool> held_{false}; // holds_ has had an entry
};

// Returns the name of a tag for texts; tags from 2^31 on are internal, and no
// caller knows them.
std::string tagName(uint32_t tag);

// First-in, first-out queue linked through the operations, so that queueing
// allocates nothing. An operation is in one queue at a time.
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
  // Returns false if the operation is in no queue; must not be called for an
  // operation in a second queue.
  bool remove(Operation* operation);

 private:
  OperationPtr head_;
  Operation* tail_ = nullptr;
};

// First-in, first-out queue of ended operations. `which` is 0 for operations
// told early and 1 for operations with memory to let go; an operation may be in
// one queue of each kind.
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
  // Returns null if the queue is empty.
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
