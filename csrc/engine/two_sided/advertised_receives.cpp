#include "engine/two_sided/advertised_receives.h"

#include "engine/two_sided/receiving_group.h"
#include "engine/two_sided/sequencer.h"

namespace dlslime {

void AdvertisedReceives::offer(
    ReceivingGroup& group,
    const OperationPtr& receive) {
  auto* const pushing = connection_->pushing();
  const auto view = receive->view();
  // Memory of GPUs is not offered: a message pushed after the receive was given
  // up would have to be read back from the GPU, for the next receive.
  if (pushing == nullptr || receive->holder != nullptr || view.onDevice() ||
      !pushing->range().contains(view.size) ||
      (mayBeEager(*receive) && !throttle_.due())) {
    return;
  }
  const auto id = offers_.insert({});
  const auto memory = pushing->offer(id, view);
  if (!memory) {
    offers_.take(id);
    return;
  }
  receive->holder = this;
  receive->transferId = id;
  const auto remoteGroup = group.remoteId(receive->peer());
  *offers_.find(id) = {receive, remoteGroup, group.id()};
  out_.sendControl(wire::Rtr{
      remoteGroup,
      static_cast<uint32_t>(group.rank()),
      receive->tag(),
      view.size,
      id,
      sequencer_.last(),
      *memory});
}

void AdvertisedReceives::forget(uint64_t id) {
  withdraw(id);
  offers_.take(id);
}

void AdvertisedReceives::withdraw(uint64_t id) {
  auto* const pushing =
      connection_ != nullptr ? connection_->pushing() : nullptr;
  if (pushing != nullptr) {
    pushing->withdraw(id);
  }
}

// True if a sender configured like this process may send the message eagerly.
bool AdvertisedReceives::mayBeEager(const Operation& receive) const {
  return receive.view().size <= out_.eagerBytes();
}

void AdvertisedReceives::miss(Operation& receive) {
  if (mayBeEager(receive)) {
    throttle_.note(false);
  }
  close(receive);
}

void AdvertisedReceives::close(Operation& receive) {
  forget(receive.transferId);
  receive.holder = nullptr;
  receive.transferId = 0;
}

void AdvertisedReceives::cancel(
    const OperationPtr& receive,
    const Status& why) {
  const auto id = receive->transferId;
  auto* const offer = offers_.find(id);
  offer->retracted = true;
  ++retracted_;
  const wire::Retract retract{offer->remoteGroup, receive->tag(), id};
  completions_.finishEarly(receive, why);
  out_.sendControl(retract);
}

void AdvertisedReceives::onRetracted(const wire::Retracted& retracted) {
  const auto id = retracted.id;
  const auto* const offer = offers_.find(id);
  if (offer == nullptr || !offer->retracted) {
    return; // not asked for
  }
  if (offer->receive) {
    completions_.finish(offer->receive, {});
  }
  --retracted_;
  forget(id);
}

std::optional<wire::Pushed> AdvertisedReceives::pushedInto(
    uint64_t id,
    size_t length) {
  auto* const offer = offers_.find(id);
  if (offer == nullptr || !offer->receive) {
    return std::nullopt;
  }
  offer->written = true;
  const auto& receive = *offer->receive;
  return wire::Pushed{
      offer->group,
      static_cast<uint32_t>(receive.peer()),
      receive.tag(),
      length,
      id};
}

AdvertisedReceives::Landed AdvertisedReceives::land(uint64_t id) {
  auto* const offer = offers_.find(id);
  if (offer == nullptr || !offer->receive) {
    return {};
  }
  if (offer->retracted) { // the peer's Retracted is still to come
    withdraw(id);
    return {std::move(offer->receive), true};
  }
  Landed landed{offer->receive, false};
  if (mayBeEager(*landed.receive)) {
    throttle_.note(true);
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

// Drops an offer whose memory is not written any more.
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
