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
  operation->holder = this;
  ++target.counters->sentMessages;
  target.counters->sentBytes += length;
  operation->stage = Operation::Stage::kQueued;
  const wire::Eager eager{
      target.group, target.source, operation->tag(), length};
  post({wire::encode(eager), operation, target.counters});
}

bool Outbound::hasCredit(uint64_t length) const {
  return outstanding_ + eagerCost(length) <= limits_.unexpectedBytes;
}

wire::Rts Outbound::rtsOf(const Queued& entry) {
  const auto eager = wire::decode<wire::Eager>(entry.header);
  wire::Rts rts;
  rts.group = eager.group;
  rts.source = eager.source;
  rts.tag = eager.tag;
  rts.length = eager.length;
  return rts;
}

// Turns an eager message into an Rts. False: no room for a Share that must go
// first.
bool Outbound::announce(Queued& entry) {
  RemoteBuffer memory;
  const auto view = entry.eager->view();
  const bool shown = view.onDevice() && connection_->onThisHost();
  if (shown && !show(*view.accelerator, view, memory)) {
    return false;
  }
  auto rts = rtsOf(entry);
  rts.id = exposures_.insert({entry.eager, rts});
  const auto operation = std::move(entry.eager);
  ++entry.counters->rendezvousMessages;
  operation->transferId = rts.id;
  operation->stage = Operation::Stage::kAnnounced;
  rts.memory = shown ? memory : expose(rts.id, *operation);
  exposures_.find(rts.id)->rts = rts;
  entry.header = wire::encode(rts);
  return true;
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
    return; // the peer reads nothing any more
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

// Writes the message into memory offered by the receiver, if any.
PushAbility::Result Outbound::tryPush(Queued& entry) {
  auto& operation = entry.eager;
  const auto group = operation->groupKey;
  const auto tag = operation->tag();
  const auto* const target = targets_.find(group, tag);
  if (target == nullptr) {
    return PushAbility::Result::kNever;
  }
  const auto view = operation->view();
  auto result = PushAbility::Result::kNever;
  auto* const pushing = connection_->pushing();
  const bool possible = pushing != nullptr &&
      (!view.onDevice() || connection_->takesGpus()) &&
      pushing->range().contains(view.size) && view.size <= target->capacity;
  if (possible) {
    const auto id = pushes_.insert({operation, rtsOf(entry), nextSequence_});
    result = pushing->push(id, target->memory, view, nextSequence_);
    if (result == PushAbility::Result::kPosted) {
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

// Notes that a tensor message has gone out, which ends the offer for group and
// tag.
void Outbound::countSent(const Operation& operation) {
  targets_.noteSent(operation.groupKey, operation.tag(), nextSequence_++);
  targets_.drop(operation.groupKey, operation.tag());
}

// Returns false to put off reading memory that may fault: a system call reads
// the memory, in vain if the bytes can't go out.
bool Outbound::mayRead(const MemoryView& view, size_t size) {
  return !view.mayFault || connection_->hasRoom(size);
}

bool Outbound::trySend(Queued& entry) {
  // Decides when the message's turn comes, not when posted: by then a receiver
  // that keeps up has returned credit or offered memory.
  if (entry.eager) {
    const auto pushed = tryPush(entry);
    if (pushed != PushAbility::Result::kNever) {
      return pushed == PushAbility::Result::kPosted;
    }
    const auto view = entry.eager->view();
    if (view.size > limits_.eagerBytes || view.onDevice() ||
        !hasCredit(view.size)) {
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
    outstanding_ += eagerCost(payload.size());
    recent_[header.sequence % kRecent] = {header.sequence, entry.eager};
    completions_.finish(std::move(entry.eager), {});
    return true;
  }
  // A missing exposure shows that the peer has ended a message before being
  // told of the message.
  const auto* const exposure = header.type == MessageType::kRts
      ? exposures_.find(wire::decode<wire::Rts>(header).id)
      : nullptr;
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
      return false; // the bytes are not in pinned memory yet
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
  auto header = wire::encode(wire::Data{
      failed ? FinishStatus::kFailed : FinishStatus::kOk,
      stream.pullId,
      stream.offset});
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
    if (auto* const pulling = connection_->pulling()) {
      pulling->unexpose(id);
    }
  }
  return exposures_.take(id).operation;
}

void Outbound::onFinish(const wire::Finish& finish) {
  const auto* const exposure = exposures_.find(finish.id);
  if (exposure == nullptr) {
    return;
  }
  auto operation = forget(finish.id);
  const EndsAnyway ends(completions_, operation);
  Status status = finishError(*operation, finish);
  if (finish.status != FinishStatus::kOk && !operation->cancelStatus.ok()) {
    status = operation->cancelStatus;
  }
  completions_.finish(std::move(operation), std::move(status));
}

void Outbound::onStreamRequest(const wire::StreamRequest& request) {
  auto* const exposure = exposures_.find(request.id);
  if (exposure != nullptr && !exposure->streaming) {
    exposure->streaming = true;
    const auto& send = exposure->operation;
    const auto begin = std::min<uint64_t>(request.begin, send->size());
    if (const auto view = send->view(); view.onDevice()) {
      exposure->staged = std::make_unique<StagedSource>(
          *view.accelerator, view.device, completions_.userOf(send));
      exposure->fetched = begin;
    }
    streams_.push_back({request.id, request.pull, begin});
  }
}

void Outbound::onCredit(const wire::Credit& credit) {
  outstanding_ -= std::min(outstanding_, credit.bytes);
}

void Outbound::onRtr(const wire::Rtr& rtr) {
  targets_.offer(rtr, nextSequence_ - 1);
}

void Outbound::onRetract(const wire::Retract& retract) {
  targets_.retract(retract);
  sendControl(wire::Retracted{retract.id});
}

void Outbound::onPushed(uint64_t pushId, const Status& status) {
  auto* const push = pushes_.find(pushId);
  if (push == nullptr) {
    return;
  }
  if (severed_ && !failed_ && !status.ok()) {
    push->over = true;
    return; // the next connection ends the push
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

// Logs the error, too, because the caller may not look at the operation any
// more: an eager send has ended well once the route has copied the message.
void Outbound::onTruncated(
    ReceivingGroup* group,
    const wire::Truncated& truncated) {
  if (group == nullptr) {
    return;
  }
  logTruncated(*group, truncated);
  const auto sequence = truncated.messageSequence;
  const auto& recent = recent_[sequence % kRecent];
  const auto operation = recent.operation.lock();
  if (recent.sequence != sequence || !operation || !operation->status().ok()) {
    return;
  }
  operation->failLate(finishError(
      *operation, {FinishStatus::kTruncated, 0, truncated.capacity}));
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
