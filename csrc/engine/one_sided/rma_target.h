#pragma once

#include <deque>
#include <list>
#include <map>
#include <set>
#include <vector>

#include "base/memory/fault.h"
#include "engine/gpu/peer_gpus.h"
#include "engine/one_sided/region.h"
#include "engine/two_sided/outbound.h"
#include "engine/wire/one_sided_messages.h"
#include "interface/transport.h"

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
      : connection_(&connection), out_(out), gpus_(gpus), regions_(regions) {}

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
    connection_ = nullptr;
    registering_.clear(); // the peer asks again on the next connection
    waiting_.clear();
  }
  void resume(Connection& connection) {
    connection_ = &connection;
  }
  // True if no answer to the peer is due.
  bool idle() const {
    return streams_.empty() && waiting_.empty() && arriving_.empty();
  }

 private:
  // A read by the peer, answered in messages.
  struct Stream {
    RegionPtr region;
    std::deque<wire::FramePiece> pieces; // still to be sent
    uint64_t position = 0; // of the next byte, in all bytes asked for
    std::list<uint64_t>::iterator turn{};
    std::unique_ptr<StagedSource> staged = nullptr; // for memory of a GPU
    bool over() const {
      return pieces.empty() && (!staged || staged->empty());
    }
  };
  // A write by the peer to memory of a GPU. Shared with the copies, which may
  // outlive the entry in arriving_.
  struct Arriving {
    size_t copies = 0; // under way
    bool failed = false;
    bool last = false; // all bytes have come
  };
  void lend(const RegionPtr& region);
  bool lendWaiting();
  void lendOrRefuse(const RegionPtr& region);
  bool reach(const Region& region, RemoteBuffer& memory);
  void refuse(uint64_t region, FinishStatus why);
  void end(uint64_t id, FinishStatus status, Fault fault = Fault::kNone);

  // rma_target_frames.cpp and rma_target_puts.cpp define the functions from
  // begin() to endUnreadable().
  static Stream begin(const wire::GetRequest& request, const RegionPtr& region);
  void write(
      const wire::Put& put,
      const RegionPtr& region,
      ByteSpan bytes,
      const std::vector<std::span<std::byte>>& places);
  void putEnded(const wire::Put& put, Fault fault);
  Fault failureOf(const wire::Put& put) const;
  bool answerArrived();
  void writePlainly(
      const wire::Put& put,
      ByteSpan bytes,
      const std::vector<std::span<std::byte>>& places);
  bool addPieces(Stream& stream, ByteSpan payload);
  Stream& streamOf(const wire::GetRequest& request, const RegionPtr& region);
  void drop(uint64_t id);
  ByteSpan take(Stream& stream, size_t most);
  Fault fillFrame(Stream& stream, size_t most);
  bool hasBytes(Stream& stream);
  bool sendChunk(uint64_t id, Stream& stream);
  bool gathers(const Stream& stream) const;
  bool gatherChunk(uint64_t id, Stream& stream);
  void endUnreadable(uint64_t id, Stream& stream, Fault fault);

  Connection* connection_; // null while being replaced
  Outbound& out_;
  PeerGpus& gpus_;
  RegionTable& regions_;
  std::map<uint64_t, RegionPtr> lent_;
  std::map<uint64_t, RegionPtr> registering_; // awaited by the peer
  std::map<uint64_t, Stream> streams_; // by the peer's id of the transfer
  // Pairs of a region's id and a key of streams_.
  std::set<std::pair<uint64_t, uint64_t>> ofRegions_;
  std::list<uint64_t> turns_; // keys of streams_ in turn
  size_t asked_ = 0; // pieces in all streams
  Bytes frame_; // of the first stream in turn, waiting for room
  std::vector<RegionPtr> waiting_; // to be lent when there is room
  // Writes to GPUs, by the peer's id of the transfer.
  std::map<uint64_t, std::shared_ptr<Arriving>> arriving_;
  // Faults of writes to memory of processors with Puts still to come, by the id
  // of the region and the peer's id of the transfer.
  std::map<std::pair<uint64_t, uint64_t>, Fault> failedPuts_;
  // Not all failed writes are in failedPuts_, so any write may have failed.
  bool tooManyFailed_ = false;
};

} // namespace dlslime
