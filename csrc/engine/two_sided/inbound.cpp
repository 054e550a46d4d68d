#include "engine/two_sided/inbound.h"
#include "engine/two_sided/read_view.h"

#include <algorithm>

#include "base/memory/guarded_copy.h"
#include "engine/progress/ends_anyway.h"
#include "engine/two_sided/receiving_group.h"
#include "interface/memory.h"

namespace dlslime {

namespace {

// Credit is returned in lumps: a small part of the limit, so that a sender
// seldom lacks it, and at most this, to be told in time.
constexpr uint64_t kMostCreditLumpBytes = 1024 * 1024;
constexpr uint64_t kCreditLumpParts = 4;
constexpr uint64_t kAnnouncementBytes = 256; // of bookkeeping

Status truncated(const Operation& receive, int source, uint64_t length) {
  return {
      ErrorCode::kTruncated,
      receive.describe() + " failed: the message from " +
          receive.nameOf(source) +
          " is longer than the tensor: " + std::to_string(length) +
          " bytes sent, " + std::to_string(receive.size()) +
          " bytes expected. Nothing was written"};
}

Status lost(Fault fault) {
  return {
      ErrorCode::kTransportFailed,
      "the message had come into the memory of an earlier receive, which was "
      "taken back, and " +
          faultText(fault, false)};
}

} // namespace

Inbound::Inbound(
    Connection& connection,
    Outbound& out,
    PeerGpus& gpus,
    Completions& completions,
    const Sequencer& sequencer,
    const Outbound::Limits& limits)
    : connection_(&connection),
      out_(out),
      gpus_(gpus),
      completions_(completions),
      ready_(out, completions, sequencer),
      limits_(limits),
      creditLump_(std::min<uint64_t>(
          kMostCreditLumpBytes,
          limits.unexpectedBytes / kCreditLumpParts)) {
  resume(connection);
}

Status Inbound::admit(const MessageHeader& header, size_t payload) {
  const bool eager = header.type == MessageType::kEager;
  auto& kept = eager ? unexpected_ : announced_;
  const uint64_t most =
      eager ? limits_.unexpectedBytes : limits_.announcedBytes;
  const uint64_t cost = eager ? eagerCost(payload) : kAnnouncementBytes;
  if (kept + cost > most) {
    return {
        ErrorCode::kTransportFailed,
        "the peer has sent more than this process keeps for receives that are "
        "not posted yet: " +
            std::to_string(kept + cost) + " bytes of " +
            (eager ? "eager messages" : "announcements") + ", and at most " +
            std::to_string(most) +
            (eager ? " (DLSLIME_UNEXPECTED_LIMIT)"
                   : " (DLSLIME_ANNOUNCED_LIMIT, 256 bytes each)")};
  }
  kept += cost;
  return {};
}

void Inbound::returnCredit(uint64_t cost) {
  creditOwed_ += cost;
  if (creditOwed_ < creditLump_) {
    return;
  }
  MessageHeader credit;
  credit.type = MessageType::kCredit;
  credit.length = creditOwed_;
  unexpected_ -= std::min(unexpected_, creditOwed_);
  creditOwed_ = 0;
  out_.sendControl(credit);
}

void Inbound::sendFinish(uint64_t id, FinishStatus status, uint64_t capacity) {
  MessageHeader finish;
  finish.type = MessageType::kFinish;
  finish.id = id;
  finish.status = status;
  finish.offset = capacity;
  announced_ -= std::min<uint64_t>(announced_, kAnnouncementBytes);
  out_.sendControl(finish);
}

// The receive that gets a message which has come by another way than a push.
OperationPtr
Inbound::takeReceive(ReceivingGroup& group, int source, uint32_t tag) {
  auto receive = group.matcher().takeReceive(source, tag);
  if (receive != nullptr && receive->holder != nullptr) {
    ready_.miss(*receive);
  }
  return receive;
}

void Inbound::onEager(
    ReceivingGroup& group,
    const MessageHeader& header,
    ByteSpan payload) {
  const int source = static_cast<int>(header.source);
  auto receive = takeReceive(group, source, header.tag);
  const EndsAnyway ends(completions_, receive);
  Arrival arrival;
  arrival.source = source;
  arrival.tag = header.tag;
  arrival.length = payload.size();
  arrival.id = header.sequence;
  arrival.channel = this;
  if (receive == nullptr) {
    arrival.credit = eagerCost(payload.size());
    arrival.data = std::make_unique_for_overwrite<std::byte[]>(payload.size());
    copyBytes(arrival.data.get(), payload.data(), payload.size());
    group.matcher().addArrival(std::move(arrival));
    return;
  }
  returnCredit(eagerCost(payload.size()));
  group.countReceived(source, payload.size());
  if (payload.size() > receive->size()) {
    refuseTooLong(group, std::move(receive), arrival);
    return;
  }
  auto status = whyFailed(*receive, source, copyIn(receive, 0, payload));
  receive->setResult(source, payload.size());
  completions_.finish(std::move(receive), std::move(status));
  group.makeReady(source, header.tag);
}

void Inbound::onAnnounce(ReceivingGroup& group, const MessageHeader& header) {
  Arrival arrival;
  arrival.source = static_cast<int>(header.source);
  arrival.tag = header.tag;
  arrival.length = header.length;
  arrival.channel = this;
  arrival.announced = true;
  arrival.id = header.id;
  arrival.remote = remoteOf(header);
  arrival.generation = generation_;
  match(group, std::move(arrival));
}

void Inbound::match(ReceivingGroup& group, Arrival arrival) {
  const int source = arrival.source;
  const auto tag = arrival.tag;
  auto receive = takeReceive(group, source, tag);
  const EndsAnyway ends(completions_, receive);
  if (receive == nullptr) {
    group.matcher().addArrival(std::move(arrival));
    return;
  }
  deliver(group, std::move(receive), std::move(arrival));
  group.makeReady(source, tag);
}

bool Inbound::onPush(ReceivingGroup& group, const MessageHeader& header) {
  const int source = static_cast<int>(header.source);
  auto landed = ready_.land(header.id);
  if (!landed.receive || header.length > landed.receive->view().size) {
    if (landed.retracted) {
      completions_.finish(std::move(landed.receive), {});
    }
    return false;
  }
  if (landed.retracted) {
    passOn(group, header, std::move(landed.receive));
    return true;
  }
  if (group.matcher().peekReceive(source, header.tag) != landed.receive.get()) {
    return false;
  }
  auto receive = group.matcher().takeReceive(source, header.tag);
  group.countReceived(source, header.length);
  completions_.noteDelivered(header.length);
  receive->setResult(source, header.length);
  completions_.finish(std::move(receive), {});
  group.makeReady(source, header.tag);
  return true;
}

// Its receive has given up: the next one of this tag gets the bytes, or hears
// that they are lost with the memory that they came into.
void Inbound::passOn(
    ReceivingGroup& group,
    const MessageHeader& header,
    OperationPtr receive) {
  Arrival arrival;
  arrival.source = static_cast<int>(header.source);
  arrival.tag = header.tag;
  arrival.length = header.length;
  arrival.id = header.sequence;
  arrival.channel = this;
  arrival.data = std::make_unique_for_overwrite<std::byte[]>(header.length);
  const auto there = readView(receive->view(), 0, header.length);
  copyBytes(arrival.data.get(), there.bytes.data(), there.bytes.size());
  arrival.fault = there.fault;
  completions_.finish(std::move(receive), {});
  match(group, std::move(arrival));
}

void Inbound::onRevoke(ReceivingGroup& group, const MessageHeader& header) {
  // Not there: it has been matched, and its own kFinish is on the way.
  if (group.matcher().removeArrival(
          static_cast<int>(header.source), header.tag, this, header.id)) {
    sendFinish(header.id, FinishStatus::kRevoked);
  }
}

void Inbound::refuse(const MessageHeader& header) {
  if (header.type == MessageType::kEager) {
    returnCredit(eagerCost(header.payloadSize));
  } else if (header.type == MessageType::kPushed) {
    if (auto landed = ready_.land(header.id); landed.receive) {
      completions_.finish(std::move(landed.receive), {});
    }
  } else if (header.type == MessageType::kRts) {
    sendFinish(header.id, FinishStatus::kGroupGone);
  }
}

void Inbound::discard(const Arrival& arrival) {
  if (arrival.announced) {
    sendFinish(arrival.id, FinishStatus::kGroupGone);
  } else {
    returnCredit(arrival.credit);
  }
}

void Inbound::deliver(
    ReceivingGroup& group,
    OperationPtr receive,
    Arrival arrival) {
  if (arrival.announced) {
    startPull(group, std::move(receive), arrival);
    return;
  }
  returnCredit(arrival.credit);
  group.countReceived(arrival.source, arrival.length);
  if (arrival.length > receive->size()) {
    refuseTooLong(group, std::move(receive), arrival);
    return;
  }
  auto status = whyFailed(
      *receive,
      arrival.source,
      arrival.fault == Fault::kNone
          ? copyWhole(receive, {arrival.data.get(), arrival.length})
          : lost(arrival.fault));
  receive->setResult(arrival.source, arrival.length);
  completions_.finish(std::move(receive), std::move(status));
}

// Both ends are told both sizes: the sender of an announced message by its
// end, that of an eager one, whose send is over, by a notice.
void Inbound::refuseTooLong(
    ReceivingGroup& group,
    OperationPtr receive,
    const Arrival& arrival) {
  const auto capacity = receive->view().size;
  if (arrival.announced) {
    sendFinish(arrival.id, FinishStatus::kTruncated, capacity);
  } else {
    MessageHeader notice;
    notice.type = MessageType::kTruncated;
    notice.group = group.remoteId(arrival.source);
    notice.source = static_cast<uint32_t>(group.rank());
    notice.tag = arrival.tag;
    notice.length = arrival.length;
    notice.offset = capacity;
    notice.id = arrival.id;
    out_.sendControl(notice);
  }
  auto status = truncated(*receive, arrival.source, arrival.length);
  completions_.finish(std::move(receive), std::move(status));
}

void Inbound::startPull(
    ReceivingGroup& group,
    OperationPtr receive,
    const Arrival& arrival) {
  const auto capacity = receive->view().size;
  group.countReceived(arrival.source, arrival.length);
  if (arrival.length > capacity) {
    refuseTooLong(group, std::move(receive), arrival);
    return;
  }
  Pull pull{receive, arrival.id, arrival.source, arrival.length};
  pull.waiting = severed_ || arrival.generation != generation_;
  const auto pullId = pulls_.insert(std::move(pull));
  receive->stage = Operation::Stage::kPulling;
  receive->transferId = pullId;
  receive->holder = this;
  if (arrival.length == 0 || !pulls_.find(pullId)->waiting) {
    fetch(pullId, arrival.remote);
    countOnGpu(group, pullId);
  }
}

void Inbound::fetch(uint64_t pullId, RemoteBuffer source) {
  auto& pull = *pulls_.find(pullId);
  pull.remote = source;
  auto destination = pull.receive->view();
  destination.data += pull.arrived; // by a connection before
  destination.size = static_cast<size_t>(pull.length - pull.arrived);
  source.address += pull.arrived;
  pull.waiting = false;
  if (destination.size == 0) {
    endPull(pullId, {});
    return;
  }
  if (pullByGpu(pullId, source, destination)) {
    return;
  }
  pull.framed = source.slot >= RemoteBuffer::kOnGpu ||
      (destination.onDevice() && !connection_->takesGpus()) ||
      !connection_->pull(pullId, pull.senderId, source, destination);
  if (pull.framed) {
    MessageHeader request;
    request.type = MessageType::kStreamRequest;
    request.id = pull.senderId;
    request.length = pull.arrived;
    request.offset = pullId;
    out_.sendControl(request);
  }
}

void Inbound::onData(const MessageHeader& header, ByteSpan payload) {
  Pull* const pull = pulls_.find(header.id);
  // Unknown: we have given it up. Not asked for in pieces: no sender of ours
  // does that, and copies may be running into its memory.
  if (pull == nullptr || !pull->framed) {
    return;
  }
  if (header.status != FinishStatus::kOk) {
    endPull(
        header.id,
        Status(
            ErrorCode::kTransportFailed,
            pull->receive->nameOf(pull->source) +
                " could not read what it sent; its send says why"));
    return;
  }
  if (header.offset != pull->arrived ||
      payload.size() > pull->length - pull->arrived) {
    endPull(
        header.id,
        Status(
            ErrorCode::kTransportFailed,
            "a piece of " + std::to_string(payload.size()) +
                " bytes at offset " + std::to_string(header.offset) +
                " does not continue a message of " +
                std::to_string(pull->length) + " bytes at " +
                std::to_string(pull->arrived)));
    return;
  }
  if (const auto status = copyIn(pull->receive, pull->arrived, payload);
      !status.ok()) {
    endPull(header.id, status);
    return;
  }
  pull->arrived += payload.size();
  if (pull->arrived == pull->length) {
    endPull(header.id, {});
  }
}

void Inbound::onPulled(uint64_t pullId, const Status& status) {
  auto* const pull = pulls_.find(pullId);
  if (pull == nullptr) {
    return;
  }
  const bool wanted = !status.ok() && pull->receive->cancelStatus.ok();
  if (severed_ && wanted) {
    pull->waiting = true;
  } else if (status.code() == ErrorCode::kDenied && wanted) {
    fetch(pullId, pull->remote);
  } else {
    endPull(pullId, status);
  }
}

} // namespace dlslime
