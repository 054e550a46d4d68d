#include "interface/operation.h"

namespace dlslime {

MemoryView Operation::view() const {
  auto view = view_;
  if (onDevice && onDevice->staged) {
    view = {onDevice->staged.get(), view_.size};
  } else if (onDevice) {
    view.accelerator = onDevice->accelerator;
  }
  return view;
}

void Operation::settle(Status status) {
  status_ = std::move(status);
  // Sequentially consistent with letGoWhenDone(): either the hold is seen here,
  // or the end is seen by letGoWhenDone().
  done_.store(true, std::memory_order_seq_cst);
  if (held_.load(std::memory_order_seq_cst)) {
    letGo();
  }
}

void Operation::letGoWhenDone(std::shared_ptr<Accelerator::StreamBlock> hold) {
  {
    const MutexLock lock(callbackMutex_);
    holds_.push_back(std::move(hold));
  }
  held_.store(true, std::memory_order_seq_cst);
  if (done_.load(std::memory_order_seq_cst)) {
    letGo();
  }
}

void Operation::letGo() {
  std::vector<std::shared_ptr<Accelerator::StreamBlock>> holds;
  {
    const MutexLock lock(callbackMutex_);
    holds.swap(holds_);
  }
  for (const auto& hold : holds) {
    hold->release();
  }
}

Operation::~Operation() {
  delete late_.load(std::memory_order_acquire);
}

void Operation::failLate(Status why) {
  const auto* const late = new Status(std::move(why));
  const Status* none = nullptr;
  if (!late_.compare_exchange_strong(none, late)) {
    delete late; // an earlier failure stays: readers may have it already
  }
}

void Operation::runCallbacks() {
  std::vector<std::function<void()>> callbacks;
  {
    const MutexLock lock(callbackMutex_);
    settled_ = true;
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) {
    callback();
  }
}

void Operation::release() {
  auto kept = Memory::kKept;
  if (!memory_.compare_exchange_strong(
          kept, Memory::kKeptAfterEnd, std::memory_order_acq_rel)) {
    releaseNow();
  }
}

void Operation::letMemoryGo() {
  if (memory_.exchange(Memory::kOwn, std::memory_order_acq_rel) ==
      Memory::kKeptAfterEnd) {
    releaseNow();
  }
}

void Operation::releaseNow() {
  prepared.reset();
  onDevice.reset();
  releaseMemory();
}

void Operation::onDone(std::function<void()> callback) {
  {
    const MutexLock lock(callbackMutex_);
    if (!settled_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

std::string Operation::nameOf(int rank) const {
  return inPair ? "the peer" : "rank " + std::to_string(rank);
}

std::string Operation::describe() const {
  return (kind_ == Kind::kSend ? "send to " : "recv from ") +
      (peer_ == kAnySource ? "any source" : nameOf(peer_)) + " " +
      tagName(tag_) + " (" + std::to_string(view_.size) + " bytes)";
}

std::string tagName(uint32_t tag) {
  constexpr uint32_t kFirstOwn = 1U << 31;
  return tag < kFirstOwn ? "tag " + std::to_string(tag)
                         : "with a tag of dlslime's own";
}

OperationPtr OperationQueue::pop() {
  if (!head_) {
    return nullptr;
  }
  OperationPtr first = std::move(head_);
  head_ = std::move(first->next_);
  (head_ ? head_->previous_ : tail_) = nullptr;
  return first;
}

bool OperationQueue::remove(Operation* operation) {
  auto* const before = operation->previous_;
  if (before == nullptr && head_.get() != operation) {
    return false;
  }
  OperationPtr& link = before != nullptr ? before->next_ : head_;
  const OperationPtr kept = std::move(link);
  link = std::move(kept->next_);
  (link ? link->previous_ : tail_) = before;
  operation->previous_ = nullptr;
  return true;
}

} // namespace dlslime
