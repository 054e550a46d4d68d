#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "base/memory/fault.h"
#include "base/slab.h"
#include "engine/gpu/peer_gpus.h"
#include "engine/one_sided/note_order.h"
#include "engine/one_sided/transfer.h"
#include "engine/progress/completions.h"
#include "engine/two_sided/outbound.h"
#include "interface/transport.h"

namespace dlslime {

// One-sided transfers that this process has begun with one peer: the
// initiator's half (docs/protocol.md, "One-sided transfers"). Before the first
// use of a region its owner is asked where it is to be reached; then the route
// moves the bytes, or they go in messages where it can't. Everything is done
// again on another connection if the route's is lost: transfers may be
// repeated until they are over. Under the engine's lock.
class RmaInitiator {
 public:
  struct Target {
    uint32_t group; // the peer's id of the group
    uint32_t source; // our rank in it
  };
  // Sends the note of a transfer whose bytes are there; both end together.
  using SendNote = std::function<void(const TransferPtr&)>;

  RmaInitiator(
      Connection& connection,
      Outbound& out,
      PeerGpus& gpus,
      Completions& completions,
      RegionTable& regions,
      const PeerIdentity& peer,
      SendNote sendNote)
      : connection_(&connection),
        out_(out),
        gpus_(gpus),
        completions_(completions),
        regions_(regions),
        peer_(peer),
        sendNote_(std::move(sendNote)) {}

  void start(const TransferPtr& transfer, Target target);
  // Ends with `why` once nothing touches its memory any more.
  void cancel(const TransferPtr& transfer, const Status& why);
  // Sends what had to wait for room. True if anything moved.
  bool flush();
  bool idle() const {
    return active_.size() == 0;
  }
  std::vector<OperationPtr> pending(uint64_t groupKey) const;

  void onResolved(const MessageHeader& header);
  void onForget(const MessageHeader& header);
  void onChunk(const MessageHeader& header, ByteSpan payload);
  // As ConnectionEvents has them, of a kGetData.
  Placement placementOf(const MessageHeader& header);
  void onPlacedChunk(const MessageHeader& header, Fault fault);
  void onSettled(const MessageHeader& header);
  void onTransferred(uint64_t id, const Status& status);
  // The local region has been enrolled, or can't be.
  void onRegistered(const Region& region, const Status& status);

  // As in Inbound.
  void fail(const Status& why);
  void sever();
  void detach() {
    connection_ = nullptr;
  }
  void quieted();
  void resume(Connection& connection);

 private:
  enum class State : uint8_t {
    kResolving, // until the owner has answered and the local memory is ready
    kMoving, // by the route, or
    kByGpu, // by a GPU of ours, which can't be stopped
    kFetching, // in kGetData messages
    kPutting, // in kPut messages
  };
  struct Position {
    size_t piece = 0;
    uint64_t offset = 0; // in it
  };
  struct Active {
    TransferPtr transfer;
    size_t part = 0;
    Target target{};
    State state = State::kResolving;
    Position at; // kFetching, kPutting: what comes, or goes, next;
    uint64_t arrived = 0; // kFetching: so many bytes in all, and
    size_t asked = 0; // for so many pieces,
    uint64_t askedBytes = 0; // of so many bytes
    // kPutting from a GPU: those on their way to pinned memory, and how far
    // they have been fetched
    std::unique_ptr<StagedSource> staged = nullptr;
    size_t nextPiece = 0;
    uint64_t nextOffset = 0;
  };
  // A region of the peer.
  struct Known {
    uint64_t secret = 0;
    bool asked = false; // on this connection,
    uint32_t askedFor = 0; // for this group of the peer's
    bool resolved = false;
    bool forgetting = false; // the owner wants it back
    size_t uses = 0; // parts that may touch it
    RemoteBuffer memory;
    uint64_t size = 0; // bytes
  };
  static const Transfer::Part& partOf(const Active& active) {
    return active.transfer->parts()[active.part];
  }
  Status refusal(const Transfer::Part& part) const;
  void askFor(const Active& active, Known& known);
  // Those that wait for something, in the order in which they have begun to.
  using Waiting = std::vector<uint64_t>;
  template <typename Key, typename Visit>
  void visit(std::map<Key, Waiting>& all, const Key& key, const Visit& visit);
  void tryStart(uint64_t id);
  void startByRoute(uint64_t id, const RemoteBuffer& memory);
  bool startByGpu(uint64_t id, const RemoteBuffer& memory);
  void startFrames(uint64_t id);
  void restart(Active& active);
  void end(uint64_t id, const Status& status);
  // Memory of this end, or of the owner, can't be touched.
  static Status faulty(const Active& active, const Status& fault);
  void finish(const TransferPtr& transfer);
  void finishBadly(const TransferPtr& transfer);
  void sendNotes(uint64_t groupKey);
  void stop(const TransferPtr& transfer, const Status& why);
  void release(uint64_t regionId);
  void sayForgotten(uint64_t regionId);

  // rma_initiator_frames.cpp
  bool sendFrame(uint64_t id);
  void fillFetch(Active& active);
  // What is to be sent can't be read, if so.
  Fault fillPut(Active& active);
  ByteSpan fromGpu(Active& active, size_t most);
  bool hasBytes(uint64_t id);
  void takeTurn(uint64_t id, const Active& active);
  // What one kPut says and carries.
  struct Cut {
    std::vector<FramePiece> entries;
    std::vector<ByteSpan> sources; // of as many bytes in all
    size_t bytes = 0;
    size_t frameBytes() const {
      return entries.size() * sizeof(FramePiece) + bytes;
    }
  };
  static Cut cut(Active& active, size_t most, size_t ready, size_t pieces);
  void describe(uint64_t id, const Active& active);
  void describePut(const Active& active, const Cut& frame);
  bool gathers(const Active& active) const;
  bool gatherPut(uint64_t id, Active& active);
  void endUnreadable(uint64_t id, const Active& active, Fault fault);
  using Places = std::vector<std::span<std::byte>>;
  static bool placesOf(
      const Active& active,
      size_t size,
      Position& at,
      Places& places,
      size_t most = std::numeric_limits<size_t>::max());
  // Of a kGetData: its read, and its places; null: it has been given up, or
  // ends.
  Active* continued(const MessageHeader& header, size_t size, Places& places);
  void arrived(uint64_t id, const Active& active, Fault fault);
  bool allSent(const Active& active) const;

  Connection* connection_; // null: being replaced
  Outbound& out_;
  PeerGpus& gpus_;
  Completions& completions_;
  RegionTable& regions_;
  const PeerIdentity& peer_;
  const SendNote sendNote_;
  bool severed_ = false;
  Slab<Active> active_;
  NoteOrder notes_;
  std::map<uint64_t, Known> known_; // by the owner's id
  std::map<uint64_t, Waiting> resolving_; // for its answer, by the owner's id
  std::map<const Region*, Waiting> enrolling_; // for a region of ours
  std::deque<uint64_t> sending_; // have frames to send, in turn
  // The frame that waits for room, and whose it is; 0: none.
  uint64_t framed_ = 0;
  MessageHeader header_;
  Bytes frame_;
};

} // namespace dlslime
