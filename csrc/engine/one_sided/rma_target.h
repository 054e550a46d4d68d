#pragma once

#include <map>
#include <set>
#include <vector>

#include "engine/one_sided/get_server.h"
#include "engine/one_sided/put_server.h"

namespace dlslime {

// Owner's half of one-sided transfers by one peer. Tells the peer how to reach
// a region; from then on the region is lent, until the peer gives the region
// back or is gone. Under the engine's lock.
class RmaTarget {
 public:
  RmaTarget(
      Connection& connection,
      Outbound& out,
      PeerGpus& gpus,
      RegionTable& regions)
      : route_{&connection},
        out_(out),
        regions_(regions),
        gets_(out, route_),
        puts_(out, gpus) {}

  // `joined` is false if the message is for a group that is gone.
  void onResolve(bool joined, const wire::Resolve& resolve);
  void
  onGetRequest(bool joined, const wire::GetRequest& request, ByteSpan payload);
  void onPut(bool joined, const wire::Put& put, ByteSpan payload);
  // placementOf() and onPlacedPut() implement ConnectionEvents for a Put;
  // `size` is the size of the payload.
  Placement placementOf(const wire::Put& put, ByteSpan begin, size_t size);
  void onPlacedPut(bool joined, const wire::Put& put, Fault fault);
  // Answers the peer's Resolve once the region was registered, or could not be.
  void onRegistered(const RegionPtr& region, const Status& status);
  RegionPtr lent(uint64_t id) const; // null: not lent
  // Asks the peer for the region, if lent; counts Region::lent down then.
  void recall(const Region& region);
  void onKeyRevoked(const wire::KeyRevoked& revoked);
  // Adds the ids of GPU allocations shown to the peer and holding lent regions.
  void addShownInUse(std::set<uint64_t>& ids) const;
  // Sends what had to wait for room. Returns true if anything moved.
  bool flush();

  // Takes all regions back, after the connection has failed for good.
  void fail();
  void detach() {
    route_.connection = nullptr;
    registering_.clear(); // the peer asks again on the next connection
    waiting_.clear();
  }
  void resume(Connection& connection) {
    route_.connection = &connection;
  }
  // True if no answer to the peer is due.
  bool idle() const {
    return gets_.idle() && waiting_.empty() && puts_.idle();
  }

 private:
  void lend(const RegionPtr& region);
  bool lendWaiting();
  void lendOrRefuse(const RegionPtr& region);
  bool reach(const Region& region, RemoteBuffer& memory);
  void refuse(uint64_t region, FinishStatus why);
  RegionPtr lentOrTell(bool joined, uint64_t region, uint64_t transfer);

  TransferRoute route_;
  Outbound& out_;
  RegionTable& regions_;
  GetServer gets_;
  PutServer puts_;
  std::map<uint64_t, RegionPtr> lent_;
  std::map<uint64_t, RegionPtr> registering_; // awaited by the peer
  std::vector<RegionPtr> waiting_; // to be lent when there is room
};

} // namespace dlslime
