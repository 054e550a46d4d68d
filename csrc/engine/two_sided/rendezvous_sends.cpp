#include "engine/two_sided/rendezvous_sends.h"

#include <algorithm>
#include <utility>

#include "engine/progress/ends_anyway.h"
#include "engine/two_sided/receiver_errors.h"
#include "interface/read_view.h"

namespace dlslime {

namespace {
Status unreadable(const Operation& operation, Fault fault) {
  return {
      ErrorCode::kTransportFailed,
      operation.describe() + " failed: this process's memory " +
          faultText(fault, false)};
}
} // namespace

bool RendezvousSends::announce(OperationPtr& announced, wire::Rts& rts) {
  RemoteBuffer memory;
  const auto view = announced->view();
  const bool shown = view.onDevice() && output_.connection()->onThisHost();
  if (shown && !shares_.show(*view.accelerator, view, memory)) {
    return false;
  }
  rts.id = exposures_.insert({announced, rts});
  const auto operation = std::move(announced);
  operation->transferId = rts.id;
  operation->stage = Operation::Stage::kAnnounced;
  rts.memory = shown ? memory : expose(rts.id, *operation);
  exposures_.find(rts.id)->rts = rts;
  return true;
}

void RendezvousSends::announceFailed(
    OperationPtr& announced,
    wire::Rts& rts,
    Fault fault) {
  rts.id = exposures_.insert({});
  const auto operation = std::move(announced);
  rts.memory.slot = RemoteBuffer::kUnreachable;
  auto& exposure = *exposures_.find(rts.id);
  exposure.operation = operation;
  exposure.rts = rts;
  exposure.failed = true;
  completions_.finish(operation, unreadable(*operation, fault));
}

void RendezvousSends::announceLost(
    const OperationPtr& operation,
    wire::Rts& rts) {
  rts.id = exposures_.insert({operation, rts});
  exposures_.find(rts.id)->rts = rts;
  operation->stage = Operation::Stage::kAnnounced;
  operation->transferId = rts.id;
}

RemoteBuffer RendezvousSends::expose(uint64_t id, const Operation& operation) {
  auto& connection = *output_.connection();
  const auto view = operation.view();
  if (view.onDevice() && !connection.takesGpus()) {
    return {0, {}, RemoteBuffer::kUnreachable};
  }
  auto* const pulling = connection.pulling();
  return pulling != nullptr ? pulling->expose(id, view) : RemoteBuffer{};
}

OperationPtr RendezvousSends::forget(uint64_t id) {
  if (auto* const connection = output_.connection()) {
    if (auto* const pulling = connection->pulling()) {
      pulling->unexpose(id);
    }
  }
  return exposures_.take(id).operation;
}

void RendezvousSends::onFinish(const wire::Finish& finish) {
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

bool RendezvousSends::cancel(
    const OperationPtr& operation,
    const Status& why,
    wire::Revoke& revoke) {
  const auto* const exposure = exposures_.find(operation->transferId);
  if (exposure == nullptr || !operation->cancelStatus.ok()) {
    return false;
  }
  operation->cancelStatus = why;
  const auto& rts = exposure->rts;
  revoke = {rts.group, rts.source, rts.tag, rts.id};
  return true;
}

void RendezvousSends::addShownInUse(std::set<uint64_t>& ids) {
  for (const auto id : exposures_.ids()) {
    shares_.addShown(exposures_.find(id)->operation->view(), ids);
  }
}

// From here on: streams.

void RendezvousSends::onStreamRequest(const wire::StreamRequest& request) {
  auto* const exposure = exposures_.find(request.id);
  if (exposure == nullptr || exposure->streaming) {
    return;
  }
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

bool RendezvousSends::flushStreams() {
  bool any = false;
  for (int i = 0; i < kPiecesPerFlush && !streams_.empty() && output_.open();
       ++i) {
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

bool RendezvousSends::streamPiece(Stream& stream) {
  auto& exposure = *exposures_.find(stream.id);
  const size_t size = exposure.operation->view().size;
  const auto piece = pieceOf(
      exposure,
      stream.offset,
      std::min(
          {kMostPieceBytes,
           output_.connection()->maxPayload(),
           size - static_cast<size_t>(stream.offset)}));
  if (!piece.ready) {
    return false;
  }
  const wire::Data data{
      piece.failed ? FinishStatus::kFailed : FinishStatus::kOk,
      stream.pullId,
      stream.offset};
  if (!output_.send(
          wire::encode(data), piece.failed ? ByteSpan{} : piece.bytes)) {
    return false;
  }
  if (piece.failed) {
    stream.offset = size;
    return true;
  }
  stream.offset += piece.bytes.size();
  if (exposure.staged != nullptr) {
    exposure.staged->pop(piece.bytes.size());
  }
  return true;
}

RendezvousSends::Piece
RendezvousSends::pieceOf(Exposure& exposure, uint64_t offset, size_t most) {
  if (exposure.staged != nullptr) {
    return fromGpu(exposure, most);
  }
  if (exposure.failed) {
    return {{}, true, true};
  }
  auto& operation = *exposure.operation;
  const auto view = operation.view();
  if (!mayRead(*output_.connection(), view, most)) {
    return {{}, false};
  }
  const auto there = readView(view, offset, most);
  const bool failed = there.fault != Fault::kNone;
  if (failed && operation.cancelStatus.ok()) {
    operation.cancelStatus = unreadable(operation, there.fault);
  }
  return {there.bytes, true, failed};
}

// Returns bytes that have come into pinned memory.
RendezvousSends::Piece RendezvousSends::fromGpu(
    Exposure& exposure,
    size_t most) {
  const auto view = exposure.operation->view();
  exposure.staged->fetchAhead([&](size_t room, auto& next) {
    const auto size = std::min<size_t>(room, view.size - exposure.fetched);
    next.push_back({view.data + exposure.fetched, size});
    exposure.fetched += size;
  });
  const auto bytes = exposure.staged->front(most);
  const bool failed = exposure.staged->failed();
  return {bytes, failed || !bytes.empty(), failed};
}

// From here on: the connection was replaced.

void RendezvousSends::exposeAgain() {
  for (const auto id : exposures_.ids()) {
    auto& exposure = *exposures_.find(id);
    if (!exposure.failed) {
      exposure.rts.memory = expose(id, *exposure.operation);
    }
    exposure.moved = true;
  }
}

template <typename Message>
void RendezvousSends::renewMemory(MessageHeader& header) {
  auto message = wire::decode<Message>(header);
  if (auto* const exposure = exposures_.find(message.id)) {
    message.memory = exposure->rts.memory;
    exposure->moved = false; // the message tells
    wire::rewrite(header, message);
  }
}

void RendezvousSends::renew(MessageHeader& header) {
  switch (header.type) {
    case MessageType::kRtr:
    case MessageType::kResolved: // the peer asks again
      wire::rewrite(header, wire::Nop{});
      return;
    case MessageType::kRts:
      renewMemory<wire::Rts>(header);
      return;
    case MessageType::kMoved:
      renewMemory<wire::Moved>(header);
      return;
    default:
      return;
  }
}

} // namespace dlslime
