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
#include "interface/transport.h"

namespace dlslime {

// What one peer does with this process's regions: the owner's half of one-sided
// transfers. It tells where a region is to be reached, and from then on that
// is lent: it is given back when the peer says so, or is gone. Under the
// engine's lock.
class RmaTarget {
 public:
  RmaTarget(
      Connection& connection,
      Outbound& out,
      PeerGpus& gpus,
      RegionTable& regions)
      : connection_(&connection), out_(out), gpus_(gpus), regions_(regions) {}

  void onResolve(const MessageHeader& header);
  // The region has been enrolled, or can't be.
  void onRegistered(const RegionPtr& region, const Status& status);
  void onFetch(const MessageHeader& header, ByteSpan payload);
  void onPut(const MessageHeader& header, ByteSpan payload);
  // As ConnectionEvents has them, of a kPut.
  Placement placementOf(const MessageHeader& header, ByteSpan begin);
  void onPlacedPut(const MessageHeader& header, Fault fault);
  RegionPtr lent(uint64_t id) const; // null: it is not lent
  // Asks for the region back, if it is lent: Region::lent will tell.
  void recall(const Region& region);
  void onForgotten(const MessageHeader& header);
  // The same for a group that is gone: the peer is told.
  void refuse(const MessageHeader& header);
  // As Outbound's.
  void addShownInUse(std::set<uint64_t>& ids) const;
  // Sends what had to wait for room. True if anything moved.
  bool flush();

  // The connection is broken for good, and nothing touches memory by it.
  void fail();
  void detach() {
    connection_ = nullptr;
    enrolling_.clear(); // the peer asks again by the next one
    waiting_.clear();
  }
  void resume(Connection& connection) {
    connection_ = &connection;
  }

 private:
  // What the peer has asked for in messages, and is being sent.
  struct Stream {
    RegionPtr region;
    std::deque<FramePiece> pieces; // to be sent
    uint64_t position = 0; // bytes that have been
    std::list<uint64_t>::iterator turn{};
    std::unique_ptr<StagedSource> staged = nullptr; // from a GPU
    bool over() const {
      return pieces.empty() && (!staged || staged->empty());
    }
  };
  // What the peer writes to a GPU, and what is not there yet of it; shared with
  // the copies, which may end later.
  struct Arriving {
    size_t copies = 0;
    bool failed = false;
    bool last = false; // all of it has come
  };
  void lend(const RegionPtr& region);
  bool lendWaiting();
  void lendOrRefuse(const RegionPtr& region);
  bool reach(const Region& region, RemoteBuffer& memory);
  void answer(
      MessageType type,
      uint64_t id,
      FinishStatus status,
      Fault fault = Fault::kNone);

  // rma_target_frames.cpp
  static Stream begin(const MessageHeader& header, const RegionPtr& region);
  void put(
      const MessageHeader& header,
      const RegionPtr& region,
      ByteSpan bytes,
      const std::vector<std::span<std::byte>>& places);
  void putEnded(const MessageHeader& header, Fault fault);
  Fault failureOf(const MessageHeader& header) const;
  bool answerArrived();
  void putPlainly(
      const MessageHeader& header,
      ByteSpan bytes,
      const std::vector<std::span<std::byte>>& places);
  bool addPieces(Stream& stream, ByteSpan payload);
  Stream& streamOf(const MessageHeader& header, const RegionPtr& region);
  void drop(uint64_t id);
  ByteSpan take(Stream& stream, size_t most);
  Fault fillFrame(Stream& stream, size_t most);
  bool hasBytes(Stream& stream);
  bool sendChunk(uint64_t id, Stream& stream);
  bool gathers(const Stream& stream) const;
  bool gatherChunk(uint64_t id, Stream& stream);
  void endUnreadable(uint64_t id, Stream& stream, Fault fault);

  Connection* connection_; // null: being replaced
  Outbound& out_;
  PeerGpus& gpus_;
  RegionTable& regions_;
  std::map<uint64_t, RegionPtr> lent_;
  std::map<uint64_t, RegionPtr> enrolling_; // the peer waits for these
  std::map<uint64_t, Stream> streams_; // by the peer's id
  // The same, each behind the id of its region.
  std::set<std::pair<uint64_t, uint64_t>> ofRegions_;
  std::list<uint64_t> turns_; // of the streams, which take turns
  size_t asked_ = 0; // pieces of all streams
  Bytes frame_; // of the first in turn, if it waits for room
  std::vector<RegionPtr> waiting_; // to be lent when there is room
  std::map<uint64_t, std::shared_ptr<Arriving>> arriving_; // by the peer's id
  // What can't be written to memory of processors, of which more is still to
  // come: the same, each behind the id of its region.
  std::map<std::pair<uint64_t, uint64_t>, Fault> failedPuts_;
  bool tooManyFailed_ = false; // to be kept: any write may be one of those
};

} // namespace dlslime
