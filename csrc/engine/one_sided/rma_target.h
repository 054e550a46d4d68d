#pragma once

#include <map>
#include <set>
#include <vector>

#include "engine/one_sided/get_server.h"
#include "engine/one_sided/put_server.h"
#include "engine/progress/engine_mutex.h"

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
  void onResolve(bool joined, const wire::Resolve& resolve)
      REQUIRES(kEngineLock);
  void onGetRequest(
      bool joined,
      const wire::GetRequest& request,
      ByteSpan payload) REQUIRES(kEngineLock);
  void onPut(bool joined, const wire::Put& put, ByteSpan payload)
      REQUIRES(kEngineLock);
  // placementOf() and onPlacedPut() implement ConnectionEvents for a Put;
  // `size` is the size of the payload.
  Placement placementOf(const wire::Put& put, ByteSpan begin, size_t size)
      REQUIRES(kEngineLock);
  void onPlacedPut(bool joined, const wire::Put& put, Fault fault)
      REQUIRES(kEngineLock);
  // Answers the peer's Resolve once the region was registered, or could not be.
  void onRegistered(const RegionPtr& region, const Status& status)
      REQUIRES(kEngineLock);
  RegionPtr lent(uint64_t id) const REQUIRES(kEngineLock); // null: not lent
  // Asks the peer for the region, if lent; counts Region::lent down then.
  void recall(const Region& region) REQUIRES(kEngineLock);
  void onKeyRevoked(const wire::KeyRevoked& revoked) REQUIRES(kEngineLock);
  // Adds the ids of GPU allocations shown to the peer and holding lent regions.
  void addShownInUse(std::set<uint64_t>& ids) const REQUIRES(kEngineLock);
  // Sends what had to wait for room. Returns true if anything moved.
  bool flush() REQUIRES(kEngineLock);

  // Takes all regions back, after the connection has failed for good.
  void fail() REQUIRES(kEngineLock);
  void detach() REQUIRES(kEngineLock) {
    route_.connection = nullptr;
    registering_.clear(); // the peer asks again on the next connection
    waiting_.clear();
  }
  void resume(Connection& connection) REQUIRES(kEngineLock) {
    route_.connection = &connection;
  }
  // True if no answer to the peer is due.
  bool idle() const REQUIRES(kEngineLock) {
    return gets_.idle() && waiting_.empty() && puts_.idle();
  }

 private:
  void lend(const RegionPtr& region) REQUIRES(kEngineLock);
  bool lendWaiting() REQUIRES(kEngineLock);
  void lendOrRefuse(const RegionPtr& region) REQUIRES(kEngineLock);
  bool reach(const Region& region, RemoteBuffer& memory) REQUIRES(kEngineLock);
  void refuse(uint64_t region, FinishStatus why) REQUIRES(kEngineLock);
  RegionPtr lentOrTell(bool joined, uint64_t region, uint64_t transfer)
      REQUIRES(kEngineLock);

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
