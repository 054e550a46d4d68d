#include "transports/rdma/rail_set.h"

#include <algorithm>

#include "transports/rdma/end_address.h"

namespace dlslime::rdma {

void RailSet::keep(uint32_t numbers) {
  std::erase_if(rails_, [numbers](const auto& rail) {
    return (numbers >> rail->number & 1) == 0;
  });
  if (rails_.empty()) {
    throw Error(
        ErrorCode::kUnavailable, "the peer takes none of our queue pairs");
  }
}

std::vector<NicPtr> RailSet::nics() const {
  std::vector<NicPtr> nics;
  for (const auto& rail : rails_) {
    if (std::find(nics.begin(), nics.end(), rail->nic) == nics.end()) {
      nics.push_back(rail->nic);
    }
  }
  return nics;
}

void RailSet::describe(ConnectionInfo& info) const {
  for (const auto& rail : rails_) {
    info.devices += (info.devices.empty() ? "" : ", ") + rail->nic->name();
    const auto& traffic = rail->queue.traffic();
    info.nics.push_back(
        {rail->nic->name(),
         traffic.requests,
         traffic.sentBytes,
         traffic.readBytes});
  }
  // Ranks the number of NICs above the number of queue pairs.
  info.lanes = nics().size() * (EndAddress::kMostRails + 1) + rails_.size();
  info.merit = meritOf(info.lanes);
}

// Ranks the distance of the nearest NIC above the lanes.
size_t RailSet::meritOf(size_t lanes) const {
  constexpr size_t kMostLanes =
      (RemoteBuffer::kMostKeys + 1) * (EndAddress::kMostRails + 1);
  auto nearest = kFarthest;
  for (const auto& rail : rails_) {
    nearest = std::min(nearest, rail->nic->distance());
  }
  const auto steps =
      static_cast<size_t>(kFarthest) - static_cast<size_t>(nearest);
  return steps * kMostLanes + lanes;
}

void RailSet::breakWith(const Rail& rail, const std::string& what) {
  if (broken_.ok()) {
    broken_ = Status(
        ErrorCode::kTransportFailed,
        "RDMA by " + rail.nic->name() + ": " + what);
    toError(); // so that NICs soon stop accessing memory
  }
  for (const auto& other : rails_) {
    onRefused_(*other, other->queue.takeRefused());
  }
}

void RailSet::toError() noexcept {
  for (const auto& rail : rails_) {
    rail->pair.toError();
  }
}

bool RailSet::post(
    Rail& rail,
    ibv_send_wr& request,
    RequestId id,
    const char* what) {
  int error = 0;
  if (rail.queue.post(request, id.kind, id.number, error)) {
    return true;
  }
  breakWith(
      rail, std::string(what) + " could not be posted: " + errnoText(error));
  return false;
}

bool RailSet::postCredit(Rail& rail, uint32_t position, RequestKind kind) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM; // without data
  request.imm_data = htobe32(position | kCreditBit);
  return post(rail, request, {kind, 0, 0}, "a credit");
}

void RailSet::beginBatch() {
  for (const auto& rail : rails_) {
    rail->queue.hold();
  }
}

void RailSet::endBatch() {
  for (const auto& rail : rails_) {
    int error = 0;
    if (!rail->queue.letGo(error)) {
      breakWith(*rail, "requests could not be posted: " + errnoText(error));
    }
  }
}

} // namespace dlslime::rdma
