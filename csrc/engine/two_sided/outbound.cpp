#include "engine/two_sided/outbound.h"
#include "engine/two_sided/read_view.h"

#include <algorithm>

#include "engine/progress/ends_anyway.h"

namespace dlslime {

Outbound::Outbound(
    Connection& connection,
    Completions& completions,
    Limits limits)
    : connection_(&connection),
      completions_(completions),
      wanted_(limits),
      limits_(limits) {
  limits_.eagerBytes = std::min(wanted_.eagerBytes, connection.maxPayload());
}

void Outbound::sendTensor(const OperationPtr& operation, Target target) {
  const size_t length = operation->view().size;
  MessageHeader header;
  header.group = target.group;
  header.source = target.source;
  header.tag = operation->tag();
  header.length = length;
  operation->holder = this;
  ++target.counters->sentMessages;
  target.counters->sentBytes += length;
  header.type = MessageType::kEager;
  operation->stage = Operation::Stage::kQueued;
  post({header, operation, target.counters});
}

bool Outbound::hasCredit(uint64_t length) const {
  return outstanding_ + eagerCost(length) <= limits_.unexpectedBytes;
}

// Makes an eager message an announced one. False: no room for what has to go
// before it.
bool Outbound::announce(Queued& entry) {
  RemoteBuffer memory;
  const auto view = entry.eager->view();
  const bool shown = view.onDevice() && connection_->onThisHost();
  if (shown && !show(*view.accelerator, view, memory)) {
    return false;
  }
  auto& header = entry.header;
  header.type = MessageType::kRts;
  header.id = exposures_.insert({entry.eager, header});
  const auto operation = std::move(entry.eager);
  ++entry.counters->rendezvousMessages;
  operation->transferId = header.id;
  operation->stage = Operation::Stage::kAnnounced;
  setRemote(header, shown ? memory : expose(header.id, *operation));
  exposures_.find(header.id)->announce = header;
  return true;
}

void Outbound::sendControl(const MessageHeader& header) {
  post({header, nullptr, nullptr, 0, false, true});
}

bool Outbound::sendNow(MessageHeader header, ByteSpan payload) {
  header.sequence = nextSequence_;
  const bool sent = mayGo() && connection_->send(header, payload);
  nextSequence_ += sent ? 1 : 0;
  return sent;
}

void Outbound::post(Queued entry) {
  if (failed_) {
    if (entry.eager) {
      completions_.finish(std::move(entry.eager), failure_);
    }
    return; // nobody would read it
  }
  if (!outbox_.empty() || severed_ || !unconfirmed_.empty() ||
      !trySend(entry)) {
    entry.order = nextOrder_++;
    if (entry.eager) {
      entry.eager->transferId = entry.order;
    }
    waitingControls_ += entry.control ? 1 : 0;
    outbox_.push_back(std::move(entry));
  }
}

// Writes the message where the receiver wants it, if it has said where.
Connection::Push Outbound::tryPush(Queued& entry) {
  auto& operation = entry.eager;
  const auto group = operation->groupKey;
  const auto tag = operation->tag();
  const auto* const target = targets_.find(group, tag);
  if (target == nullptr) {
    return Connection::Push::kNever;
  }
  const auto view = operation->view();
  const auto range = connection_->pushRange();
  auto result = Connection::Push::kNever;
  const bool possible = !view.onDevice() || connection_->takesGpus();
  if (possible && view.size >= range.least && view.size <= range.most &&
      view.size <= target->capacity) {
    const auto id = pushes_.insert({operation, entry.header});
    result = connection_->push(id, target->memory, view, nextSequence_);
    if (result == Connection::Push::kPosted) {
      auto& announce = pushes_.find(id)->announce;
      announce.type = MessageType::kRts;
      announce.sequence = nextSequence_;
      operation->stage = Operation::Stage::kPushing;
      operation->transferId = id;
      ++entry.counters->pushedMessages;
      countSent(*operation);
      operation = nullptr;
    } else {
      pushes_.take(id);
    }
  }
  return result;
}

// A tensor message has just gone out: what was offered for it is over.
void Outbound::countSent(const Operation& operation) {
  targets_.noteSent(operation.groupKey, operation.tag(), nextSequence_++);
  targets_.drop(operation.groupKey, operation.tag());
}

// Memory that may fault is read by a system call, in vain if it can't go out.
bool Outbound::mayRead(const MemoryView& view, size_t size) {
  return !view.mayFault || connection_->hasRoom(size);
}

bool Outbound::trySend(Queued& entry) {
  // Decided when its turn comes, not when it is posted: by then a receiver
  // that keeps up has returned the credit, or said where to write.
  if (entry.eager) {
    const auto pushed = tryPush(entry);
    if (pushed != Connection::Push::kNever) {
      return pushed == Connection::Push::kPosted;
    }
    if (entry.header.length > limits_.eagerBytes ||
        entry.eager->view().onDevice() || !hasCredit(entry.header.length)) {
      if (!announce(entry)) {
        return false;
      }
    }
  }
  ByteSpan payload;
  if (entry.eager) {
    const auto view = entry.eager->view();
    if (!mayRead(view, view.size)) {
      return false;
    }
    const auto there = readView(view, 0, view.size);
    payload = there.bytes;
    if (there.fault != Fault::kNone) {
      announceFailed(entry, there.fault);
    }
  }
  MessageHeader header = entry.header;
  header.sequence = nextSequence_;
  if (!connection_->send(header, payload)) {
    return false;
  }
  if (entry.eager) {
    countSent(*entry.eager);
    ++entry.counters->eagerMessages;
    outstanding_ += eagerCost(header.length);
    recent_[header.sequence % kRecent] = {header.sequence, entry.eager};
    completions_.finish(std::move(entry.eager), {});
    return true;
  }
  // Not there any more: a peer that answers what it has not been told.
  const auto* const exposure =
      header.type == MessageType::kRts ? exposures_.find(header.id) : nullptr;
  if (exposure != nullptr) {
    countSent(*exposure->operation);
  } else {
    ++nextSequence_;
  }
  return true;
}

bool Outbound::flushQueued() {
  if (severed_ || !flushUnconfirmed()) {
    return false;
  }
  bool any = false;
  while (!outbox_.empty() &&
         (outbox_.front().cancelled || trySend(outbox_.front()))) {
    waitingControls_ -= outbox_.front().control ? 1 : 0;
    outbox_.pop_front();
    any = true;
  }
  return any;
}

bool Outbound::flushStreams() {
  bool any = false;
  for (int i = 0; i < kPiecesPerFlush && !streams_.empty() && mayGo(); ++i) {
    Stream stream = streams_.front();
    streams_.pop_front();
    const auto* const exposure = exposures_.find(stream.id);
    if (exposure == nullptr) {
      continue; // the receiver has given up
    }
    const bool sent = streamPiece(stream);
    if (!sent || stream.offset < exposure->operation->view().size) {
      const bool staged = exposure->staged != nullptr;
      streams_.insert(StagedSource::nextTurn(streams_, staged), stream);
    }
    if (!sent) {
      return any;
    }
    any = true;
  }
  return any;
}

bool Outbound::streamPiece(Stream& stream) {
  auto& exposure = *exposures_.find(stream.id);
  const auto view = exposure.operation->view();
  const size_t most = std::min(
      {kMostPieceBytes,
       connection_->maxPayload(),
       view.size - static_cast<size_t>(stream.offset)});
  auto* const staged = exposure.staged.get();
  ByteSpan piece;
  bool failed = exposure.failed;
  if (staged != nullptr) {
    piece = fromGpu(exposure, most);
    failed = staged->failed();
    if (piece.empty() && !failed) {
      return false; // it is not in pinned memory yet
    }
  } else if (!failed) {
    if (!mayRead(view, most)) {
      return false;
    }
    const auto there = readView(view, stream.offset, most);
    piece = there.bytes;
    failed = there.fault != Fault::kNone;
    if (failed && exposure.operation->cancelStatus.ok()) {
      exposure.operation->cancelStatus =
          unreadable(*exposure.operation, there.fault);
    }
  }
  MessageHeader header;
  header.type = MessageType::kData;
  header.status = failed ? FinishStatus::kFailed : FinishStatus::kOk;
  header.id = stream.pullId;
  header.offset = stream.offset;
  header.length = view.size;
  header.sequence = nextSequence_;
  if (!connection_->send(header, failed ? ByteSpan{} : piece)) {
    return false;
  }
  ++nextSequence_;
  if (failed) {
    stream.offset = view.size;
    return true;
  }
  stream.offset += piece.size();
  if (staged != nullptr) {
    staged->pop(piece.size());
  }
  return true;
}

OperationPtr Outbound::forget(uint64_t id) {
  if (connection_ != nullptr) {
    connection_->unexpose(id);
  }
  return exposures_.take(id).operation;
}

void Outbound::onFinish(const MessageHeader& header) {
  const auto* const exposure = exposures_.find(header.id);
  if (exposure == nullptr) {
    return;
  }
  auto operation = forget(header.id);
  const EndsAnyway ends(completions_, operation);
  Status status = finishError(*operation, header);
  if (header.status != FinishStatus::kOk && !operation->cancelStatus.ok()) {
    status = operation->cancelStatus;
  }
  completions_.finish(std::move(operation), std::move(status));
}

void Outbound::onRequest(const MessageHeader& header) {
  auto* const exposure = exposures_.find(header.id);
  if (exposure != nullptr && !exposure->streaming) {
    exposure->streaming = true;
    const auto& send = exposure->operation;
    const auto begin = std::min<uint64_t>(header.length, send->size());
    if (const auto view = send->view(); view.onDevice()) {
      exposure->staged = std::make_unique<StagedSource>(
          *view.accelerator, view.device, completions_.userOf(send));
      exposure->fetched = begin;
    }
    streams_.push_back({header.id, header.offset, begin});
  }
}

void Outbound::onCredit(const MessageHeader& header) {
  outstanding_ -= std::min(outstanding_, header.length);
}

void Outbound::onReady(const MessageHeader& header) {
  targets_.offer(header, nextSequence_ - 1);
}

void Outbound::onRetract(const MessageHeader& header) {
  targets_.retract(header);
  MessageHeader answer;
  answer.type = MessageType::kRetracted;
  answer.id = header.id;
  sendControl(answer);
}

void Outbound::onPushed(uint64_t pushId, const Status& status) {
  auto* const push = pushes_.find(pushId);
  if (push == nullptr) {
    return;
  }
  if (severed_ && !failed_ && !status.ok()) {
    push->over = true;
    return; // the next connection ends it
  }
  auto operation = pushes_.take(pushId).operation;
  const EndsAnyway ends(completions_, operation);
  auto ended = status.ok()
      ? status
      : Status(
            status.code(),
            operation->describe() + " failed: " + status.message());
  completions_.finish(std::move(operation), std::move(ended));
}

void Outbound::onTruncated(const MessageHeader& header) {
  const auto& recent = recent_[header.id % kRecent];
  const auto operation = recent.operation.lock();
  if (recent.sequence != header.id || !operation || !operation->status().ok()) {
    return;
  }
  MessageHeader finish = header;
  finish.status = FinishStatus::kTruncated;
  operation->failLate(finishError(*operation, finish));
}

std::vector<OperationPtr> Outbound::pending(uint64_t groupKey) const {
  std::vector<OperationPtr> found;
  const auto add = [&](const OperationPtr& operation) {
    if (operation && operation->groupKey == groupKey && !operation->done()) {
      found.push_back(operation);
    }
  };
  for (const auto& entry : outbox_) {
    add(entry.eager);
  }
  for (const auto id : exposures_.ids()) {
    add(const_cast<Slab<Exposure>&>(exposures_).find(id)->operation);
  }
  for (const auto id : pushes_.ids()) {
    add(const_cast<Slab<Pushing>&>(pushes_).find(id)->operation);
  }
  return found;
}

} // namespace dlslime
