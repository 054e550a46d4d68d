#include "engine/two_sided/inbound.h"

#include <algorithm>

#include "base/memory/guarded_copy.h"
#include "engine/progress/ends_anyway.h"
#include "engine/two_sided/receiving_group.h"
#include "interface/read_view.h"

namespace dlslime {

namespace {

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
      "taken back; the memory " +
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
    : out_(out),
      completions_(completions),
      copies_(gpus, completions),
      credit_(out, limits),
      rendezvous_(out, gpus, completions, copies_, credit_),
      advertised_(out, completions, sequencer) {
  resume(connection);
}

// Takes the receive for a message that was not pushed, and ends the receive's
// offer.
OperationPtr
Inbound::takeReceive(ReceivingGroup& group, int source, uint32_t tag) {
  auto receive = group.matcher().takeReceive(source, tag);
  if (receive != nullptr && receive->holder != nullptr) {
    advertised_.miss(*receive);
  }
  return receive;
}

Status Inbound::onEager(
    ReceivingGroup* group,
    const wire::Eager& eager,
    uint64_t sequence,
    ByteSpan payload) {
  if (auto status = credit_.admitEager(payload.size()); !status.ok()) {
    return status;
  }
  if (group == nullptr) {
    credit_.returnEager(eagerCost(payload.size()));
    return {};
  }
  const int source = static_cast<int>(eager.source);
  auto receive = takeReceive(*group, source, eager.tag);
  const EndsAnyway ends(completions_, receive);
  Arrival arrival;
  arrival.source = source;
  arrival.tag = eager.tag;
  arrival.length = payload.size();
  arrival.id = sequence;
  arrival.from = this;
  if (receive == nullptr) {
    arrival.credit = eagerCost(payload.size());
    arrival.data = std::make_unique_for_overwrite<std::byte[]>(payload.size());
    copyBytes(arrival.data.get(), payload.data(), payload.size());
    group->matcher().addArrival(std::move(arrival));
    return {};
  }
  credit_.returnEager(eagerCost(payload.size()));
  group->countReceived(source, payload.size());
  if (payload.size() > receive->size()) {
    refuseTooLong(*group, std::move(receive), arrival);
    return {};
  }
  auto status = ReceiveCopies::whyFailed(
      *receive, source, copies_.copyIn(receive, 0, payload));
  receive->setResult(source, payload.size());
  completions_.finish(std::move(receive), std::move(status));
  group->makeReady(source, eager.tag);
  return {};
}

Status Inbound::onRts(ReceivingGroup* group, const wire::Rts& rts) {
  if (auto status = credit_.admitRts(); !status.ok()) {
    return status;
  }
  if (group == nullptr) {
    credit_.finish(rts.id, FinishStatus::kGroupGone);
    return {};
  }
  Arrival arrival;
  arrival.source = static_cast<int>(rts.source);
  arrival.tag = rts.tag;
  arrival.length = rts.length;
  arrival.from = this;
  arrival.announced = true;
  arrival.id = rts.id;
  arrival.remote = rts.memory;
  arrival.generation = rendezvous_.generation();
  match(*group, std::move(arrival));
  return {};
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

void Inbound::onRevoke(ReceivingGroup* group, const wire::Revoke& revoke) {
  // Without an arrival, a receive has matched the message, and a Finish is on
  // the way.
  if (group != nullptr &&
      group->matcher().removeArrival(
          static_cast<int>(revoke.source), revoke.tag, this, revoke.id)) {
    credit_.finish(revoke.id, FinishStatus::kRevoked);
  }
}

void Inbound::onMoved(ReceivingGroup* group, const wire::Moved& moved) {
  if (rendezvous_.severed() || group == nullptr) {
    return; // severed: a Moved comes by the next connection, too
  }
  if (auto* const arrival = group->matcher().findArrival(
          static_cast<int>(moved.source), moved.tag, this, moved.id)) {
    arrival->remote = moved.memory;
    arrival->generation = rendezvous_.generation();
  } else {
    rendezvous_.onMoved(moved);
  }
}

bool Inbound::onPushed(
    ReceivingGroup* group,
    const wire::Pushed& pushed,
    uint64_t sequence) {
  auto landed = advertised_.land(pushed.id);
  if (group == nullptr) {
    if (landed.receive) {
      completions_.finish(std::move(landed.receive), {});
    }
    return true;
  }
  const int source = static_cast<int>(pushed.source);
  if (!landed.receive || pushed.length > landed.receive->view().size) {
    if (landed.retracted) {
      completions_.finish(std::move(landed.receive), {});
    }
    return false;
  }
  if (landed.retracted) {
    passOn(*group, pushed, sequence, std::move(landed.receive));
    return true;
  }
  auto& matcher = group->matcher();
  if (matcher.peekReceive(source, pushed.tag) != landed.receive.get()) {
    return false;
  }
  auto receive = matcher.takeReceive(source, pushed.tag);
  group->countReceived(source, pushed.length);
  completions_.noteDelivered(pushed.length);
  receive->setResult(source, pushed.length);
  completions_.finish(std::move(receive), {});
  group->makeReady(source, pushed.tag);
  return true;
}

// Gives a message pushed into a cancelled receive to the next receive of the
// tag: the bytes, or the fault of the memory with the bytes.
void Inbound::passOn(
    ReceivingGroup& group,
    const wire::Pushed& pushed,
    uint64_t sequence,
    OperationPtr receive) {
  Arrival arrival;
  arrival.source = static_cast<int>(pushed.source);
  arrival.tag = pushed.tag;
  arrival.length = pushed.length;
  arrival.id = sequence;
  arrival.from = this;
  arrival.data = std::make_unique_for_overwrite<std::byte[]>(pushed.length);
  const auto there = readView(receive->view(), 0, pushed.length);
  copyBytes(arrival.data.get(), there.bytes.data(), there.bytes.size());
  arrival.fault = there.fault;
  completions_.finish(std::move(receive), {});
  match(group, std::move(arrival));
}

void Inbound::discard(const Arrival& arrival) {
  if (arrival.announced) {
    credit_.finish(arrival.id, FinishStatus::kGroupGone);
  } else {
    credit_.returnEager(arrival.credit);
  }
}

void Inbound::deliver(
    ReceivingGroup& group,
    OperationPtr receive,
    Arrival arrival) {
  if (!arrival.announced) {
    credit_.returnEager(arrival.credit);
  }
  group.countReceived(arrival.source, arrival.length);
  if (arrival.length > receive->size()) {
    refuseTooLong(group, std::move(receive), arrival);
    return;
  }
  if (arrival.announced) {
    rendezvous_.start(group, receive, arrival);
    return;
  }
  auto status = ReceiveCopies::whyFailed(
      *receive,
      arrival.source,
      arrival.fault == Fault::kNone
          ? copies_.copyKept(receive, {arrival.data.get(), arrival.length})
          : lost(arrival.fault));
  receive->setResult(arrival.source, arrival.length);
  completions_.finish(std::move(receive), std::move(status));
}

// Fails the receive and tells both sizes to the sender: by the Finish of an
// Rts, or by Truncated for an eager message, whose send has ended.
void Inbound::refuseTooLong(
    ReceivingGroup& group,
    OperationPtr receive,
    const Arrival& arrival) {
  const auto capacity = receive->view().size;
  if (arrival.announced) {
    credit_.finish(arrival.id, FinishStatus::kTruncated, capacity);
  } else {
    out_.sendControl(wire::Truncated{
        group.remoteId(arrival.source),
        static_cast<uint32_t>(group.rank()),
        arrival.tag,
        arrival.length,
        arrival.id,
        capacity});
  }
  auto status = truncated(*receive, arrival.source, arrival.length);
  completions_.finish(std::move(receive), std::move(status));
}

void Inbound::fail(const Status& why) {
  rendezvous_.fail(why); // first: afterwards nothing is written any more
  advertised_.fail();
}

void Inbound::sever() {
  mayBePushed_ = false;
  rendezvous_.sever();
}

void Inbound::detach() {
  rendezvous_.detach();
  advertised_.detach();
}

void Inbound::resume(Connection& connection) {
  mayBePushed_ = connection.pushing() != nullptr;
  rendezvous_.resume(connection);
  advertised_.resume(connection);
}

} // namespace dlslime
