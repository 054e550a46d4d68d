#include "engine/two_sided/advertised_receives.h"

#include "engine/two_sided/receiving_group.h"
#include "engine/two_sided/sequencer.h"

namespace dlslime {

void AdvertisedReceives::offer(
    ReceivingGroup& group,
    const OperationPtr& receive,
    void* holder) {
  const auto range = connection_->pushRange();
  const auto view = receive->view();
  // Not a GPU's: what has come when its receive had given up would have to be
  // read back from there, for the next one.
  if (receive->holder != nullptr || view.onDevice() ||
      view.size < range.least || view.size > range.most ||
      (mayBeEager(*receive) && !pace_.due())) {
    return;
  }
  const auto id = offers_.insert({});
  const auto memory = connection_->offer(id, view);
  if (!memory) {
    offers_.take(id);
    return;
  }
  receive->holder = holder;
  receive->transferId = id;
  const auto remoteGroup = group.remoteId(receive->peer());
  *offers_.find(id) = {receive, remoteGroup, group.id()};
  MessageHeader ready;
  ready.type = MessageType::kRtr;
  ready.group = remoteGroup;
  ready.source = static_cast<uint32_t>(group.rank());
  ready.tag = receive->tag();
  ready.length = view.size;
  ready.id = id;
  ready.offset = sequencer_.last();
  ready.address = memory->address;
  ready.key = memory->keys[0];
  ready.slot = memory->slot;
  out_.sendControl(ready);
}

void AdvertisedReceives::forget(uint64_t id) {
  if (connection_ != nullptr) {
    connection_->withdraw(id);
  }
  offers_.take(id);
}

// As the sender has it, if it is configured as we are.
bool AdvertisedReceives::mayBeEager(const Operation& receive) const {
  return receive.view().size <= out_.eagerBytes();
}

void AdvertisedReceives::miss(Operation& receive) {
  if (mayBeEager(receive)) {
    pace_.note(false);
  }
  close(receive);
}

void AdvertisedReceives::close(Operation& receive) {
  forget(receive.transferId);
  receive.holder = nullptr;
  receive.transferId = 0;
}

void AdvertisedReceives::retract(
    const OperationPtr& receive,
    const Status& why) {
  const auto id = receive->transferId;
  auto* const offer = offers_.find(id);
  offer->retracted = true;
  ++retracted_;
  MessageHeader retract;
  retract.type = MessageType::kRetract;
  retract.group = offer->remoteGroup;
  retract.tag = receive->tag();
  retract.id = id;
  completions_.finishEarly(receive, why);
  out_.sendControl(retract);
}

void AdvertisedReceives::onRetracted(uint64_t id) {
  const auto* const offer = offers_.find(id);
  if (offer == nullptr || !offer->retracted) {
    return; // nothing that we have asked for
  }
  if (offer->receive) {
    completions_.finish(offer->receive, {});
  }
  --retracted_;
  forget(id);
}

std::optional<MessageHeader> AdvertisedReceives::headerOf(uint64_t id) {
  auto* const offer = offers_.find(id);
  if (offer == nullptr || !offer->receive) {
    return std::nullopt;
  }
  offer->written = true;
  MessageHeader header;
  header.type = MessageType::kPushed;
  header.group = offer->group;
  header.source = static_cast<uint32_t>(offer->receive->peer());
  header.tag = offer->receive->tag();
  header.id = id;
  return header;
}

AdvertisedReceives::Landed AdvertisedReceives::land(uint64_t id) {
  auto* const offer = offers_.find(id);
  if (offer == nullptr || !offer->receive) {
    return {};
  }
  if (offer->retracted) { // the peer's answer is still to come
    if (connection_ != nullptr) {
      connection_->withdraw(id);
    }
    return {std::move(offer->receive), true};
  }
  Landed landed{offer->receive, false};
  if (mayBeEager(*landed.receive)) {
    pace_.note(true);
  }
  close(*landed.receive);
  return landed;
}

void AdvertisedReceives::fail() {
  for (const auto id : offers_.ids()) {
    drop(id);
  }
  retracted_ = 0;
}

void AdvertisedReceives::detach() {
  connection_ = nullptr;
  for (const auto id : offers_.ids()) {
    const auto& offer = *offers_.find(id);
    if (!offer.written || !offer.receive) {
      retracted_ -= offer.retracted ? 1 : 0;
      drop(id);
    }
  }
}

// Nothing will be written there.
void AdvertisedReceives::drop(uint64_t id) {
  auto& offer = *offers_.find(id);
  if (offer.receive && offer.retracted) {
    completions_.finish(std::move(offer.receive), {});
  } else if (offer.receive) {
    offer.receive->holder = nullptr;
    offer.receive->transferId = 0;
  }
  forget(id);
}

} // namespace dlslime
