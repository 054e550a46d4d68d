#include "engine/two_sided/outbound.h"

#include <algorithm>

#include "interface/read_view.h"

namespace dlslime {

Outbound::Outbound(
    Connection& connection,
    Completions& completions,
    Limits limits)
    : output_(connection),
      rendezvous_(output_, completions, shares_),
      pushes_(output_, completions),
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

void Outbound::post(Outbox::Message entry) {
  if (output_.failed()) {
    if (entry.eager) {
      completions_.finish(std::move(entry.eager), output_.failure());
    }
    return; // the peer reads nothing any more
  }
  if (!mayGo() || !trySend(entry)) {
    outbox_.push(std::move(entry));
  }
}

// Decides when the message's turn comes, not when posted: by then a receiver
// that keeps up has returned credit or offered memory.
bool Outbound::trySend(Outbox::Message& entry) {
  if (!entry.eager) {
    return tryControl(entry.header);
  }
  const auto pushed = pushes_.tryPush(entry.eager, entry.header);
  if (pushed == PushAbility::Result::kPosted) {
    ++entry.counters->pushedMessages;
    entry.eager = nullptr;
  }
  if (pushed != PushAbility::Result::kNever) {
    return pushed == PushAbility::Result::kPosted;
  }
  const auto view = entry.eager->view();
  if (view.size <= limits_.eagerBytes && !view.onDevice() &&
      hasCredit(view.size)) {
    return tryEager(entry);
  }
  return announce(entry) && tryControl(entry.header);
}

bool Outbound::hasCredit(uint64_t length) const {
  return outstanding_ + eagerCost(length) <= limits_.unexpectedBytes;
}

bool Outbound::tryEager(Outbox::Message& entry) {
  const auto view = entry.eager->view();
  if (!mayRead(*output_.connection(), view, view.size)) {
    return false;
  }
  const auto there = readView(view, 0, view.size);
  if (there.fault != Fault::kNone) {
    auto rts = rtsOf(entry.header);
    rendezvous_.announceFailed(entry.eager, rts, there.fault);
    entry.header = wire::encode(rts);
    return tryControl(entry.header);
  }
  if (!output_.send(entry.header, there.bytes)) {
    return false;
  }
  const auto number = output_.next() - 1;
  pushes_.noteSent(*entry.eager, number);
  ++entry.counters->eagerMessages;
  outstanding_ += eagerCost(there.bytes.size());
  recent_.note(number, entry.eager);
  completions_.finish(std::move(entry.eager), {});
  return true;
}

// Turns an eager message into an Rts. False: no room for a Share that must go
// first.
bool Outbound::announce(Outbox::Message& entry) {
  auto rts = rtsOf(entry.header);
  if (!rendezvous_.announce(entry.eager, rts)) {
    return false;
  }
  ++entry.counters->rendezvousMessages;
  entry.header = wire::encode(rts);
  return true;
}

// Sends a message without a payload.
bool Outbound::tryControl(const MessageHeader& header) {
  if (!output_.send(header, {})) {
    return false;
  }
  if (header.type == MessageType::kRts) {
    // Without an operation, the peer has ended the message before being told.
    const auto* const operation =
        rendezvous_.find(wire::decode<wire::Rts>(header).id);
    if (operation != nullptr) {
      pushes_.noteSent(*operation, output_.next() - 1);
    }
  }
  return true;
}

bool Outbound::sendNow(MessageHeader header, ByteSpan payload) {
  return mayGo() && output_.send(header, payload);
}

bool Outbound::flushQueued() {
  if (output_.severed() || !output_.flushUnconfirmed()) {
    return false;
  }
  bool any = false;
  while (!outbox_.empty() &&
         (outbox_.front().cancelled || trySend(outbox_.front()))) {
    outbox_.pop();
    any = true;
  }
  return any;
}

void Outbound::onCredit(const wire::Credit& credit) {
  outstanding_ -= std::min(outstanding_, credit.bytes);
}

void Outbound::onRetract(const wire::Retract& retract) {
  pushes_.onRetract(retract);
  sendControl(wire::Retracted{retract.id});
}

// Without room sends nothing: the peer asks again when in need.
void Outbound::onReshare(const wire::Reshare& reshare) {
  const auto description =
      shares_.describe(reshare.allocation, reshare.handOver);
  if (!description.empty()) {
    static_cast<void>(
        sendNow(wire::encode(wire::Share{reshare.allocation}), description));
  }
}

std::vector<OperationPtr> Outbound::pending(uint64_t groupKey) const {
  std::vector<OperationPtr> found;
  const auto add = [&](const OperationPtr& operation) {
    if (operation && operation->groupKey == groupKey && !operation->done()) {
      found.push_back(operation);
    }
  };
  for (const auto& entry : outbox_.all()) {
    add(entry.eager);
  }
  rendezvous_.forEach(add);
  pushes_.forEach(add);
  return found;
}

// From here on: sends that end before their time.

void Outbound::cancel(const OperationPtr& operation, const Status& why) {
  if (operation->stage == Operation::Stage::kPushing) {
    if (operation->cancelStatus.ok()) {
      operation->cancelStatus = why; // for a replacement of the connection
    }
    return; // the push ends soon, or with the connection
  }
  if (operation->stage == Operation::Stage::kAnnounced) {
    wire::Revoke revoke;
    if (rendezvous_.cancel(operation, why, revoke)) {
      sendControl(revoke);
    }
    return;
  }
  if (operation->stage == Operation::Stage::kQueued &&
      outbox_.cancel(operation)) {
    completions_.finish(operation, why);
  }
}

// May be called again, as is necessary after std::bad_alloc.
void Outbound::fail(const Status& why) {
  output_.fail(why);
  const auto tell = [&](const OperationPtr& operation) REQUIRES(kEngineLock) {
    Status status =
        !operation->cancelStatus.ok() ? operation->cancelStatus : inWords([&] {
          return Status(
              why.code(), operation->describe() + " failed: " + why.message());
        });
    completions_.finishEarly(operation, std::move(status));
  };
  const auto end = [&](const OperationPtr& operation) REQUIRES(kEngineLock) {
    tell(operation);
    failedSends_.push_back(operation);
  };
  for (; !outbox_.empty(); outbox_.pop()) {
    if (outbox_.front().eager) {
      end(outbox_.front().eager);
    }
  }
  rendezvous_.fail(end);
  pushes_.fail(tell, end);
}

void Outbound::releaseFailed() {
  for (const auto& operation : failedSends_) {
    completions_.finish(operation, {});
  }
  failedSends_.clear();
}

// From here on: the connection is replaced.

void Outbound::keepUnconfirmed(std::vector<SentMessage> messages) {
  output_.keepUnconfirmed(std::move(messages));
  pushes_.dropOffers();
}

Status Outbound::resume(Connection& connection, uint64_t peerLast) {
  output_.resume(connection, peerLast);
  limits_.eagerBytes = std::min(wanted_.eagerBytes, connection.maxPayload());
  pushes_.endAll(
      peerLast,
      [this](const OperationPtr& operation, wire::Rts rts, uint64_t number)
          REQUIRES(kEngineLock) {
            rendezvous_.announceLost(operation, rts);
            output_.sendInPlace(rts, number);
          });
  if (auto whole = output_.orderUnconfirmed(peerLast); !whole.ok()) {
    return whole;
  }
  shares_.clear();
  rendezvous_.exposeAgain();
  for (auto& message : output_.unconfirmed()) {
    rendezvous_.renew(message.header);
  }
  for (auto& entry : outbox_.all()) {
    rendezvous_.renew(entry.header);
  }
  rendezvous_.tellMoved([this](const wire::Moved& moved)
                            REQUIRES(kEngineLock) { sendControl(moved); });
  return {};
}

} // namespace dlslime
