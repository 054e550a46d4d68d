#pragma once

#include <deque>
#include <memory>
#include <set>

#include "base/slab.h"
#include "engine/gpu/staging.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/gpu_shares.h"
#include "engine/two_sided/sequenced_output.h"
#include "engine/wire/two_sided_messages.h"

namespace dlslime {

// kMostPieceBytes and kPiecesPerFlush limit what is copied through messages:
// small enough for several messages on their way in a ring, and for a short
// hold of the engine's lock, which is held while a few are copied.
constexpr size_t kMostPieceBytes = 64 * 1024;
constexpr int kPiecesPerFlush = 8;

// Announced sends (Rts), from the announcement until the receiver has told the
// end: the receiver reads the bytes, or asks for a stream of pieces. Under the
// engine's lock.
class RendezvousSends {
 public:
  RendezvousSends(
      SequencedOutput& output,
      Completions& completions,
      GpuShares& shares)
      : output_(output), completions_(completions), shares_(shares) {}

  // The following complete an Rts with id and memory, and take the operation,
  // unless they throw std::bad_alloc first.

  // False: no room for a Share that must go first.
  [[nodiscard]] bool announce(OperationPtr& operation, wire::Rts& rts)
      REQUIRES(kEngineLock);
  // For a send whose memory can't be read: ends the send and so the use of the
  // memory. The receiver is told when a receive matches.
  void announceFailed(OperationPtr& operation, wire::Rts& rts, Fault fault)
      REQUIRES(kEngineLock);
  // For a push that was lost with its connection; exposeAgain() follows.
  void announceLost(const OperationPtr& operation, wire::Rts& rts)
      REQUIRES(kEngineLock);
  // Returns the announced operation, or null: the peer has ended the message.
  const Operation* find(uint64_t id) REQUIRES(kEngineLock) {
    const auto* const exposure = exposures_.find(id);
    return exposure == nullptr ? nullptr : exposure->operation.get();
  }
  void onFinish(const wire::Finish& finish) REQUIRES(kEngineLock);
  void onStreamRequest(const wire::StreamRequest& request)
      REQUIRES(kEngineLock);
  // Sends pieces of requested streams. True if any were sent.
  bool flushStreams() REQUIRES(kEngineLock);
  // Takes a send back. Returns false when that is not possible (any more), else
  // what to tell the receiver.
  bool cancel(
      const OperationPtr& operation,
      const Status& why,
      wire::Revoke& revoke) REQUIRES(kEngineLock);

  // Names our memory anew for a new connection: all names told to the peer held
  // for the connection that is gone.
  void exposeAgain() REQUIRES(kEngineLock);
  // Puts the new place of the memory into a message that is still to be sent.
  void renew(MessageHeader& header) REQUIRES(kEngineLock);
  // Calls `send` with a Moved for each memory whose new place no message tells.
  template <typename Send>
  void tellMoved(const Send& send) REQUIRES(kEngineLock) {
    for (const auto id : exposures_.ids()) {
      auto& exposure = *exposures_.find(id);
      if (std::exchange(exposure.moved, false) && !exposure.streaming) {
        send(wire::Moved{exposure.rts});
      }
    }
  }

  bool empty() const REQUIRES(kEngineLock) {
    return exposures_.size() == 0;
  }
  template <typename Visit>
  void forEach(const Visit& visit) const REQUIRES(kEngineLock) {
    for (const auto id : exposures_.ids()) {
      visit(exposures_.find(id)->operation);
    }
  }
  // Adds the ids of the GPU allocations that hold announced messages.
  void addShownInUse(std::set<uint64_t>& ids) REQUIRES(kEngineLock);
  // Gives all sends to `end`.
  template <typename End>
  void fail(const End& end) REQUIRES(kEngineLock) {
    streams_.clear();
    for (const auto id : exposures_.ids()) {
      end(exposures_.find(id)->operation);
      forget(id);
    }
  }

 private:
  struct Exposure {
    OperationPtr operation;
    wire::Rts rts;
    bool streaming = false; // the receiver has asked for a stream
    bool moved = false; // the receiver has yet to be told the new place
    bool failed = false; // the memory can't be read
    // Set while streaming from a GPU.
    std::unique_ptr<StagedSource> staged = nullptr;
    uint64_t fetched = 0; // bytes of the message given to `staged`
  };
  // Message that is copied to the receiver through messages.
  struct Stream {
    uint64_t id; // our id of the message
    uint64_t pullId; // the receiver's id of the stream
    uint64_t offset;
  };
  // Bytes of a stream that can go out.
  struct Piece {
    ByteSpan bytes;
    bool ready = true; // false: to be tried later
    bool failed = false;
  };
  RemoteBuffer expose(uint64_t id, const Operation& operation)
      REQUIRES(kEngineLock);
  OperationPtr forget(uint64_t id) REQUIRES(kEngineLock);
  bool streamPiece(Stream& stream) REQUIRES(kEngineLock);
  Piece pieceOf(Exposure& exposure, uint64_t offset, size_t most)
      REQUIRES(kEngineLock);
  static Piece fromGpu(Exposure& exposure, size_t most) REQUIRES(kEngineLock);
  template <typename Message>
  void renewMemory(MessageHeader& header) REQUIRES(kEngineLock);

  SequencedOutput& output_;
  Completions& completions_;
  GpuShares& shares_;
  Slab<Exposure> exposures_;
  std::deque<Stream> streams_;
};

// Returns false to put off reading memory that may fault: a system call reads
// the memory, in vain if the bytes can't go out.
inline bool
mayRead(Connection& connection, const MemoryView& view, size_t size) {
  return !view.mayFault || connection.hasRoom(size);
}

} // namespace dlslime
