#include "transports/rdma/bulk_requests.h"

#include <algorithm>

#include "base/log.h"

namespace dlslime::rdma {

// Returns no registrations if registering fails; the message is then streamed,
// as a small message is.
RailMemory::Regions BulkRequests::registered(MemoryView view) const {
  try {
    return memory_.worthwhile(view);
  } catch (const Error& error) {
    if (rails_.first().nic->said().isNew(error.what())) {
      logWarning(
          std::string(error.what()) +
          "; messages from and to such memory are copied through the eager "
          "ring, which is slower");
    }
  }
  return {};
}

RemoteBuffer BulkRequests::expose(uint64_t id, MemoryView view) {
  auto regions = registered(view);
  const auto remote = RailMemory::remote(regions, view);
  exposed_[id] = std::move(regions);
  return remote;
}

bool BulkRequests::pull(
    uint64_t pullId,
    uint64_t /*peerId*/,
    RemoteBuffer source,
    MemoryView destination) {
  if (source.keys[rails_.first().peerNicNumber] == 0) {
    return false;
  }
  auto regions = registered(destination);
  if (memory_.first(regions) == nullptr) {
    return false;
  }
  bulk_.startPull(pullId, source, destination, std::move(regions));
  post();
  return true;
}

RemoteBuffer BulkRequests::reach(
    MemoryView view,
    const Registration* registration) {
  if (registration == nullptr) {
    return {}; // no key: transfers go in messages
  }
  reached_ = true;
  const auto& memory = *static_cast<const RegisteredRegion*>(registration);
  return RailMemory::remote(memory_.of(memory), view);
}

bool BulkRequests::direct(
    const RemoteBuffer& there,
    const Registration* registration) const {
  const auto* const memory = static_cast<const RegisteredRegion*>(registration);
  const auto& rails = rails_.all();
  return std::any_of(rails.begin(), rails.end(), [&](const auto& rail) {
    return there.keys[rail->peerNicNumber] != 0 &&
        (memory == nullptr || memory->regions.contains(rail->nic.get()));
  });
}

void BulkRequests::start(const TransferWork& work) {
  const auto& memory = *static_cast<const RegisteredRegion*>(work.registration);
  bulk_.startTransfer(work, memory_.of(memory));
  rails_.beginBatch();
  post();
  rails_.endBatch();
}

void BulkRequests::stop(uint64_t transferId) {
  bulk_.abandon(
      Bulk::Kind::kTransfer,
      transferId,
      Status(ErrorCode::kCancelled, "the transfer was given up"));
}

void BulkRequests::post() {
  if (!rails_.whole()) {
    return;
  }
  std::string why;
  if (const auto* const rail = bulk_.post(why)) {
    rails_.breakWith(*rail, why);
  }
}

void BulkRequests::abandon(uint64_t pullId) {
  bulk_.abandon(
      Bulk::Kind::kPull,
      pullId,
      Status(ErrorCode::kCancelled, "the transfer was given up"));
}

} // namespace dlslime::rdma
