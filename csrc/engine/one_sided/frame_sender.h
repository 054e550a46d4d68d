#pragma once

#include <deque>
#include <vector>

#include "engine/one_sided/active_part.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/outbound.h"
#include "engine/wire/one_sided_messages.h"

namespace dlslime {

// Sends the messages of parts that the route can't move: Put with the bytes of
// a write, GetRequest for the bytes of a read. Parts take turns. Under the
// engine's lock.
class FrameSender {
 public:
  FrameSender(
      ActiveParts& parts,
      PartOwner& owner,
      Outbound& out,
      const TransferRoute& route)
      : parts_(parts), owner_(owner), out_(out), route_(route) {}

  void add(uint64_t id) REQUIRES(kEngineLock) {
    sending_.push_back(id);
  }
  void remove(uint64_t id) REQUIRES(kEngineLock);
  // Sends messages while there is room. Returns true if any was sent.
  bool flush() REQUIRES(kEngineLock);

 private:
  // Pieces of one Put message, and the bytes carried.
  struct Cut {
    std::vector<wire::FramePiece> entries;
    std::vector<ByteSpan> sources; // `bytes` bytes in all
    size_t bytes = 0;
    size_t frameBytes() const {
      return entries.size() * sizeof(wire::FramePiece) + bytes;
    }
  };
  void takeTurn(uint64_t id, const ActivePart& active) REQUIRES(kEngineLock);
  bool hasBytes(uint64_t id) REQUIRES(kEngineLock);
  bool sendFrame(uint64_t id) REQUIRES(kEngineLock);
  void fillRequest(uint64_t id, ActivePart& active) REQUIRES(kEngineLock);
  // Returns the fault if the bytes to be sent can't be read.
  Fault fillPut(uint64_t id, ActivePart& active) REQUIRES(kEngineLock);
  bool gathers(const ActivePart& active) const REQUIRES(kEngineLock);
  bool gatherPut(uint64_t id, ActivePart& active) REQUIRES(kEngineLock);
  void endUnreadable(uint64_t id, const ActivePart& active, Fault fault)
      REQUIRES(kEngineLock);
  static ByteSpan fromGpu(ActivePart& active, size_t most)
      REQUIRES(kEngineLock);
  static Cut cut(ActivePart& active, size_t most, size_t ready, size_t pieces);
  static MessageHeader
  headerOf(uint64_t id, const ActivePart& active, const Cut& frame);

  ActiveParts& parts_;
  PartOwner& owner_;
  Outbound& out_;
  const TransferRoute& route_;
  std::deque<uint64_t> sending_; // ids of parts with frames to send, in turn
  // Id of the part with a frame waiting for room (header_, frame_); 0: none.
  uint64_t framed_ = 0;
  MessageHeader header_;
  Bytes frame_;
};

} // namespace dlslime
