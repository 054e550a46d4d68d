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
#include "engine/wire/one_sided_messages.h"
#include "interface/transport.h"

namespace dlslime {

// Initiator's half of one-sided transfers with one peer (docs/protocol.md,
// "One-sided transfers"). Before the first use of a region, the owner is asked
// for the way to reach the memory. Then the route moves the bytes; where the
// route can't, messages carry the bytes. Transfers may be repeated until over:
// after the loss of a connection, the next connection begins anew what the lost
// route was moving. Under the engine's lock.
class RmaInitiator final : public OperationHolder {
 public:
  struct Target {
    uint32_t group; // the peer's id of the group
    uint32_t source; // our rank in the group
  };
  // Sends the note of a transfer with all bytes arrived; note and transfer end
  // together.
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
  // Ends the transfer with `why`, once nothing touches the memory any more.
  void cancel(const OperationPtr& operation, const Status& why) override;
  // Sends frames that had to wait for room. Returns true if any was sent.
  bool flush();
  bool idle() const {
    return active_.size() == 0;
  }
  std::vector<OperationPtr> pending(uint64_t groupKey) const;

  void onResolved(const wire::Resolved& resolved);
  void onRevokeKey(const wire::RevokeKey& revoke);
  void onGetData(const wire::GetData& data, ByteSpan payload);
  // placementOf() and onPlacedData() implement ConnectionEvents for a GetData;
  // `size` is the size of the payload.
  Placement placementOf(const wire::GetData& data, size_t size);
  void onPlacedData(const wire::GetData& data, size_t size, Fault fault);
  void onPutAck(const wire::PutAck& ack);
  void onTransferred(uint64_t id, const Status& status);
  // Goes on with transfers waiting for the registration of a local region;
  // `status` says whether registering succeeded.
  void onRegistered(const Region& region, const Status& status);

  // Ends all transfers with `why`, because the channel has failed.
  void fail(const Status& why);
  // Begins nothing until resume(): another connection will take the place of
  // the present connection.
  void sever();
  // Makes no further call to the severed connection.
  void detach() {
    connection_ = nullptr;
  }
  // Resets the transfers that the severed connection was moving, to begin anew,
  // and ends the cancelled transfers: the severed connection has been
  // destroyed.
  void quieted();
  // Begins waiting transfers by the new connection.
  void resume(Connection& connection);

 private:
  enum class State : uint8_t {
    kResolving, // awaits the owner's answer, or registration of local memory
    kMoving, // by the route
    kByGpu, // by a GPU of ours; can't be stopped
    kFetching, // in GetData messages
    kPutting, // in Put messages
  };
  struct Position {
    size_t piece = 0;
    uint64_t offset = 0; // in the piece, in bytes
  };
  // A part of a transfer, from start to end.
  struct Active {
    TransferPtr transfer;
    size_t part = 0;
    Target target{};
    State state = State::kResolving;
    Position at; // kFetching, kPutting: place of the next byte
    uint64_t arrived = 0; // kFetching: bytes arrived
    size_t asked = 0; // kFetching: number of pieces asked for
    uint64_t askedBytes = 0; // kFetching: bytes of the pieces asked for
    // kPutting from a GPU: bytes on the way through pinned memory.
    std::unique_ptr<StagedSource> staged = nullptr;
    size_t nextPiece = 0; // piece of the next byte to be staged
    uint64_t nextOffset = 0; // of the next byte to be staged, in the piece
  };
  // A region of the peer.
  struct Known {
    uint64_t secret = 0;
    bool asked = false; // on the present connection, and not refused
    uint32_t askedFor = 0; // group in the Resolve, by the peer's id
    bool resolved = false;
    bool forgetting = false; // the owner wants the region back
    size_t uses = 0; // parts that may touch the region
    RemoteBuffer memory;
    uint64_t size = 0; // bytes
  };
  static const Transfer::Part& partOf(const Active& active) {
    return active.transfer->parts()[active.part];
  }
  Status refusal(const Transfer::Part& part) const;
  void askFor(const Active& active, Known& known);
  // Ids of parts waiting for one event, the longest-waiting part first.
  using Waiting = std::vector<uint64_t>;
  // Takes the parts at `key` out of `all`, and visits the parts not begun yet.
  // A visited part may be added at the key again.
  template <typename Key, typename Visit>
  void visit(std::map<Key, Waiting>& all, const Key& key, const Visit& visit);
  void tryStart(uint64_t id);
  void startByRoute(uint64_t id, const RemoteBuffer& memory);
  bool startByGpu(uint64_t id, const RemoteBuffer& memory);
  void startFrames(uint64_t id);
  void restart(Active& active);
  void end(uint64_t id, const Status& status);
  // Returns a status naming the memory at either end that can't be touched;
  // passes on a `fault` with a different cause.
  static Status faulty(const Active& active, const Status& fault);
  void finish(const TransferPtr& transfer);
  void finishBadly(const TransferPtr& transfer);
  void sendNotes(uint64_t groupKey);
  void stop(const TransferPtr& transfer, const Status& why);
  void release(uint64_t regionId);
  void giveBack(uint64_t regionId);

  // rma_initiator_frames.cpp defines the functions from sendFrame() to
  // allSent().
  bool sendFrame(uint64_t id);
  void fillRequest(uint64_t id, Active& active);
  // Returns the fault if the bytes to be sent can't be read.
  Fault fillPut(uint64_t id, Active& active);
  ByteSpan fromGpu(Active& active, size_t most);
  bool hasBytes(uint64_t id);
  void takeTurn(uint64_t id, const Active& active);
  // Pieces of one Put message, and the bytes carried.
  struct Cut {
    std::vector<wire::FramePiece> entries;
    std::vector<ByteSpan> sources; // `bytes` bytes in all
    size_t bytes = 0;
    size_t frameBytes() const {
      return entries.size() * sizeof(wire::FramePiece) + bytes;
    }
  };
  static Cut cut(Active& active, size_t most, size_t ready, size_t pieces);
  static MessageHeader
  headerOf(uint64_t id, const Active& active, const Cut& frame);
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
  // Returns the read continued by `size` bytes of a GetData, and fills
  // `places`. Returns null if the read has been given up, or ends because the
  // bytes do not continue the read.
  Active* continued(const wire::GetData& data, size_t size, Places& places);
  void arrived(uint64_t id, const Active& active, Fault fault);
  bool allSent(const Active& active) const;

  Connection* connection_; // null while being replaced
  Outbound& out_;
  PeerGpus& gpus_;
  Completions& completions_;
  RegionTable& regions_;
  const PeerIdentity& peer_;
  const SendNote sendNote_;
  bool severed_ = false;
  Slab<Active> active_;
  NoteOrder notes_;
  std::map<uint64_t, Known> known_; // by the owner's id of the region
  // Parts waiting for the owner's answer, by the owner's id of the region.
  std::map<uint64_t, Waiting> resolving_;
  // Parts waiting for the registration of a local region.
  std::map<const Region*, Waiting> registering_;
  std::deque<uint64_t> sending_; // ids of parts with frames to send, in turn
  // Id of the part with a frame waiting for room (header_, frame_); 0: none.
  uint64_t framed_ = 0;
  MessageHeader header_;
  Bytes frame_;
};

} // namespace dlslime
