#include "torch_ext/store/store_exchange.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <span>

#include "base/printable.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

StoreExchange::StoreExchange(
    std::shared_ptr<GroupHandle> handle,
    uint32_t tag,
    milliseconds limit,
    std::function<void()> whileWaiting)
    : handle_(std::move(handle)),
      rank_(handle_->rank()),
      size_(handle_->size()),
      tag_(tag),
      limit_(limit),
      whileWaiting_(std::move(whileWaiting)),
      deadline_(deadlineAfter(limit)),
      values_(size_) {}

void StoreExchange::start() {
  heard_.insert(rank_);
  for (const int peer : peers()) {
    listen(peer);
  }
}

template <typename Ready>
void StoreExchange::await(TimePoint until, const Ready& ready) {
  const StaysWhenPythonEnds stays;
  const OutsidePython outside;
  MutexLock lock(mutex_);
  while (!ready()) {
    if (problem_.empty() && Clock::now() >= until) {
      lock.unlock();
      note(lateText(limit_));
      lock.lock();
    }
    TORCH_CHECK_WITH(DistBackendError, problem_.empty(), "dlslime: ", problem_);
    lock.unlock();
    handle_->engine->attend(); // the engine's thread calls take()
    heedSignals();
    whileWaiting_();
    lock.lock();
    if (!ready() && problem_.empty()) {
      changed_.waitUntil(lock, std::min(until, deadlineAfter(kSignalsEvery)));
    }
  }
}

void StoreExchange::close() {
  std::map<int, OperationPtr> pending;
  {
    const MutexLock guard(mutex_);
    closed_ = true;
    pending.swap(receives_);
  }
  for (const auto& [peer, operation] : pending) {
    drop(operation);
  }
}

void StoreExchange::set(const std::string& key, ByteSpan value) {
  for (size_t offset = 0; offset == 0 || offset < value.size();) {
    const size_t room = kMostBytes - kStoreHeadBytes - key.size();
    const size_t size = std::min(room, value.size() - offset);
    sendToAll(encode(
        {StoreMessage::Kind::kPart,
         rank_,
         key,
         value.size(),
         offset,
         value.subspan(offset, size)}));
    offset += std::max<size_t>(size, 1);
  }
  const MutexLock guard(mutex_);
  values_.set(key, value);
  changed_.notifyAll();
}

std::optional<Bytes> StoreExchange::find(const std::string& key) {
  const MutexLock guard(mutex_);
  const auto* const found = values_.find(key);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void StoreExchange::awaitKeys(
    const std::vector<std::string>& keys,
    milliseconds most) {
  const auto until = std::min(deadline_, deadlineAfter(most));
  await(until, [&] {
    return std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
      return values_.find(key) != nullptr;
    });
  });
}

void StoreExchange::finish() {
  if (rank_ != 0) {
    sendToAll(encode({StoreMessage::Kind::kDone, rank_, "", 0, 0, {}}));
    await(deadline_, [&] { return done_.contains(0); });
    return;
  }
  await(deadline_, [&] { return int(done_.size()) == size_ - 1; });
  sendToAll(encode({StoreMessage::Kind::kDone, 0, "", 0, 0, {}}));
}

void StoreExchange::fail(const std::string& why) {
  {
    const MutexLock guard(mutex_);
    if (told_) {
      return; // every rank knows already
    }
  }
  note(why);
  const auto most = why.substr(0, kMostKey);
  sendToAll(encode(
      {StoreMessage::Kind::kFailed,
       rank_,
       "",
       most.size(),
       0,
       std::as_bytes(std::span(most))}));
}

std::string StoreExchange::problem() {
  const MutexLock guard(mutex_);
  return problem_;
}

std::string StoreExchange::lateText(milliseconds limit) {
  std::vector<std::pair<int, OperationPtr>> silent;
  {
    const MutexLock guard(mutex_);
    for (int rank = 0; rank < size_; ++rank) {
      if (!heard_.contains(rank)) {
        const auto found = receives_.find(rank);
        silent.emplace_back(
            rank, found == receives_.end() ? nullptr : found->second);
      }
    }
  }
  return textOfSilent(*handle_, limit, silent);
}

std::vector<int> StoreExchange::peers() const {
  std::vector<int> all;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && (rank_ == 0 || peer == 0)) {
      all.push_back(peer);
    }
  }
  return all;
}

void StoreExchange::sendToAll(const std::shared_ptr<Bytes>& bytes, int except) {
  for (const int peer : peers()) {
    if (peer != except) {
      handle_->engine->send(
          *handle_->group,
          std::make_shared<NoteOperation>(
              Operation::Kind::kSend, peer, tag_, bytes));
    }
  }
}

void StoreExchange::listen(int peer) {
  for (bool more = true; more;) {
    auto bytes = std::make_shared<Bytes>(kMostBytes);
    auto operation = std::make_shared<NoteOperation>(
        Operation::Kind::kReceive, peer, tag_, bytes);
    handle_->engine->receive(*handle_->group, operation);
    if (!keep(peer, operation)) {
      return;
    }
    if (!operation->done()) {
      operation->onDone(
          [self = shared_from_this(), peer, bytes, raw = operation.get()] {
            if (self->take(peer, *raw, *bytes)) {
              self->listen(peer);
            }
          });
      return;
    }
    more = take(peer, *operation, *bytes);
  }
}

bool StoreExchange::keep(int peer, const OperationPtr& operation) {
  {
    const MutexLock guard(mutex_);
    if (!closed_) {
      receives_[peer] = operation;
      return true;
    }
  }
  drop(operation);
  return false;
}

void StoreExchange::drop(const OperationPtr& operation) {
  handle_->engine->abandon(
      *handle_->group,
      operation,
      Status(ErrorCode::kCancelled, "it is not needed any more"));
}

bool StoreExchange::take(
    int peer,
    const Operation& operation,
    const Bytes& bytes) {
  const auto& status = operation.status();
  if (!status.ok()) {
    lost(peer, status.message());
    return false;
  }
  const auto whole = ByteSpan(bytes).first(operation.bytes());
  const auto message = decodeStoreMessage(whole);
  // Only rank 0 passes on messages of further ranks.
  if (!message || message->origin < 0 || message->origin >= size_ ||
      message->origin == rank_ || (rank_ == 0 && message->origin != peer)) {
    lost(peer, "it has sent a malformed or foreign message");
    return false;
  }
  switch (message->kind) {
    case StoreMessage::Kind::kPart:
      passOn(whole, peer);
      return add(*message);
    case StoreMessage::Kind::kFailed:
      passOn(whole, peer);
      note(
          "rank " + std::to_string(message->origin) +
              " says: " + printable(textOf(message->part), kMostBytes),
          true);
      return false;
    case StoreMessage::Kind::kDone:
      noteDone(peer);
      return false;
  }
  return false;
}

void StoreExchange::passOn(ByteSpan message, int from) {
  if (rank_ == 0) {
    sendToAll(std::make_shared<Bytes>(message.begin(), message.end()), from);
  }
}

bool StoreExchange::add(const StoreMessage& message) {
  {
    const MutexLock guard(mutex_);
    heard_.insert(message.origin);
    changed_.notifyAll();
    if (values_.add(message)) {
      return true;
    }
  }
  lost(message.origin, values_.tooMuch());
  return false;
}

void StoreExchange::noteDone(int peer) {
  const MutexLock guard(mutex_);
  done_.insert(peer);
  receives_.erase(peer);
  changed_.notifyAll();
}

void StoreExchange::lost(int peer, const std::string& why) {
  const auto what = "rank " + std::to_string(peer) + ": " + why;
  {
    const MutexLock guard(mutex_);
    receives_.erase(peer);
    if (closed_ || done_.contains(peer)) {
      return;
    }
  }
  rank_ == 0 ? fail(what) : note(what);
}

void StoreExchange::note(const std::string& why, bool told) {
  const MutexLock guard(mutex_);
  told_ = told_ || told;
  if (problem_.empty()) {
    problem_ = why;
  }
  changed_.notifyAll();
}

} // namespace dlslime
