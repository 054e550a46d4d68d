#include "engine/one_sided/rma_initiator.h"

// Loss and replacement of the connection, as seen by transfers.

namespace dlslime {

void RmaInitiator::fail(const Status& why) {
  for (const auto id : active_.ids()) {
    const auto* const active = active_.find(id);
    if (active == nullptr) {
      continue;
    }
    const auto transfer = active->transfer;
    if (transfer->cancelStatus.ok()) {
      cancel(
          transfer,
          Status(
              why.code(), transfer->describe() + " failed: " + why.message()));
    }
  }
  known_.clear();
  resolving_.clear();
  registering_.clear();
}

void RmaInitiator::sever() {
  severed_ = true;
}

void RmaInitiator::quieted() {
  for (const auto id : active_.ids()) {
    auto* const active = active_.find(id);
    if (active == nullptr || active->state != State::kMoving) {
      continue;
    }
    const auto& transfer = *active->transfer;
    if (transfer.cancelStatus.ok() && transfer.problem.ok()) {
      restart(*active);
    } else {
      end(id, transfer.problem.ok() ? transfer.cancelStatus : transfer.problem);
    }
  }
}

void RmaInitiator::resume(Connection& connection) {
  connection_ = &connection;
  severed_ = false;
  resolving_.clear(); // all parts are tried below
  registering_.clear();
  for (auto& [id, known] : known_) {
    known.asked = false;
    known.resolved = false;
  }
  for (const auto id : active_.ids()) {
    tryStart(id);
  }
}

} // namespace dlslime
