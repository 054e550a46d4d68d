#pragma once

#include <map>
#include <string>

#include "transports/rdma/bulk.h"
#include "transports/rdma/rail_set.h"

namespace dlslime::rdma {

// Begins and stops bulk data: pulls of messages, and transfers between
// registered memory. Names memory of this process for those of the peer.
class BulkRequests final : public PullAbility, public RmaAbility {
 public:
  BulkRequests(RailSet& rails, RailMemory& memory, Bulk& bulk)
      : rails_(rails), memory_(memory), bulk_(bulk) {}

  RemoteBuffer expose(uint64_t id, MemoryView view) override;
  void unexpose(uint64_t id) override {
    exposed_.erase(id);
  }
  bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) override;
  void abandon(uint64_t pullId) override;

  bool direct(const RemoteBuffer& there, const Registration* registration)
      const override;
  RemoteBuffer reach(MemoryView view, const Registration* registration)
      override;
  void start(const TransferWork& work) override;
  void stop(uint64_t transferId) override;

  // Posts parts while the rails have room.
  void post();
  // True if reach() has given keys to the peer, which may then read and write
  // memory of this process.
  bool reached() const {
    return reached_;
  }

 private:
  RailMemory::Regions registered(MemoryView view) const;

  RailSet& rails_;
  RailMemory& memory_;
  Bulk& bulk_;
  std::map<uint64_t, RailMemory::Regions> exposed_;
  bool reached_ = false;
};

} // namespace dlslime::rdma
