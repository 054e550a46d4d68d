#pragma once

#include <vector>

#include "base/slab.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/matcher.h"
#include "engine/two_sided/receive_copies.h"
#include "engine/two_sided/receive_credit.h"
#include "interface/transport.h"

namespace dlslime {

class ReceivingGroup;

// Receives that have matched an Rts, while the bytes are pulled by the route,
// copied by a GPU of ours, or streamed by the sender (docs/protocol.md,
// "Two-sided messages"). Under the engine's lock.
class RendezvousReceives final : public OperationHolder {
 public:
  RendezvousReceives(
      Outbound& out,
      PeerGpus& gpus,
      Completions& completions,
      const ReceiveCopies& copies,
      ReceiveCredit& credit)
      : out_(out),
        gpus_(gpus),
        completions_(completions),
        copies_(copies),
        credit_(credit) {}

  // Begins to fetch the message of an Rts into a receive with enough room.
  void start(
      ReceivingGroup& group,
      const OperationPtr& receive,
      const Arrival& arrival) REQUIRES(kEngineLock);
  void onData(const wire::Data& data, ByteSpan payload) REQUIRES(kEngineLock);
  // onPulled() and onPartlyPulled() are events of the connection.
  void onPulled(uint64_t pullId, const Status& status) REQUIRES(kEngineLock);
  void onPartlyPulled(uint64_t pullId, size_t arrived) REQUIRES(kEngineLock);
  // Goes on with a message whose new place the sender has told, after the
  // connection was replaced.
  void onMoved(const wire::Moved& moved) REQUIRES(kEngineLock);

  void cancel(const OperationPtr& receive, const Status& why)
      REQUIRES(kEngineLock) override;
  // Ends all receives, because the connection has failed. Receives whose memory
  // may still be written end later, by onPulled().
  void fail(const Status& why) REQUIRES(kEngineLock);
  bool idle() const REQUIRES(kEngineLock) {
    return pulls_.size() == 0;
  }
  std::vector<OperationPtr> pending(uint64_t groupKey) const
      REQUIRES(kEngineLock);

  // A replacement of the connection takes sever(), then detach(), after which
  // the old connection is not used, then quieted(), after which the old
  // connection touches no memory, then resume(). Each unfinished message waits
  // for a Moved.
  void sever() REQUIRES(kEngineLock) {
    severed_ = true;
  }
  bool severed() const REQUIRES(kEngineLock) {
    return severed_;
  }
  void detach() REQUIRES(kEngineLock) {
    connection_ = nullptr;
  }
  void quieted() REQUIRES(kEngineLock);
  void resume(Connection& connection) REQUIRES(kEngineLock) {
    connection_ = &connection;
    severed_ = false;
    ++generation_;
  }
  // Number of the connection, for Arrival::generation.
  uint32_t generation() const REQUIRES(kEngineLock) {
    return generation_;
  }

 private:
  struct Pull {
    OperationPtr receive;
    uint64_t senderId = 0;
    int source = 0;
    uint64_t length = 0; // bytes
    RemoteBuffer remote{}; // the sender's memory
    uint64_t arrived = 0; // bytes that have come, from the beginning
    bool framed = false; // streamed by the sender
    bool waiting = false; // for Moved
    bool byGpu = false; // copied by a GPU of ours, which can't be stopped
  };
  void fetch(uint64_t pullId, RemoteBuffer source) REQUIRES(kEngineLock);
  bool fetchByGpu(uint64_t pullId, RemoteBuffer source, MemoryView to)
      REQUIRES(kEngineLock);
  void countOnGpu(ReceivingGroup& group, uint64_t pullId) REQUIRES(kEngineLock);
  void end(uint64_t pullId, Status status) REQUIRES(kEngineLock);

  Connection* connection_ = nullptr; // null: being replaced
  Outbound& out_;
  PeerGpus& gpus_;
  Completions& completions_;
  const ReceiveCopies& copies_;
  ReceiveCredit& credit_;
  Slab<Pull> pulls_;
  bool severed_ = false;
  uint32_t generation_ = 0;
};

} // namespace dlslime
