#pragma once

#include "base/bytes.h"
#include "transports/rdma/device/handles.h"
#include "transports/rdma/device/nic.h"

namespace dlslime::rdma {

// What the other end must know to connect to a queue pair.
struct QueuePairAddress {
  uint32_t number = 0;
  uint32_t packetSequence = 0; // the first one it will send, 24 bits
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  bool ethernet = true;
  bool globalHeader = false; // its port takes no packets without one
  uint8_t maxReadsIn = 1; // RDMA reads it serves at a time
  ibv_gid gid{};

  void write(ByteWriter& writer) const;
  // Throws Error{kPeerFailed} if a value can't be.
  static QueuePairAddress read(ByteReader& reader);
};

// Of every posted receive: requests of a SendQueue have others.
constexpr uint64_t kReceiveId = 0;

struct QueueDepths {
  uint32_t sends = 0;
  uint32_t receives = 0;
  uint32_t inlineBytes = 0; // as much of it as the device has
};

// A reliable connection's end: RESET -> INIT when made, -> RTR -> RTS by
// connect(). Not thread-safe.
class QueuePair {
 public:
  QueuePair(
      NicPtr nic,
      CompletionQueuePtr completions,
      QueueDepths depths,
      const RdmaConfig& config);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  const NicPtr& nic() const {
    return nic_;
  }
  QueuePairAddress address() const;
  uint32_t inlineBytes() const {
    return inlineBytes_;
  }
  // Once connected: of the largest packet.
  uint32_t packetBytes() const {
    return 128U << pathMtu_;
  }
  // Throws Error.
  void connect(const QueuePairAddress& peer);
  // Ends all requests, with flush errors; afterwards the device touches no
  // memory for this queue pair. Idempotent.
  void toError() noexcept;
  // Null: all of the list is posted; else the first one that was not taken, as
  // those behind it, with the errno in `error`.
  ibv_send_wr* postSend(ibv_send_wr* list, int& error);
  bool postReceives(uint32_t count);

 private:
  void modify(ibv_qp_attr& attributes, int mask, const char* step);
  void toInit();
  ibv_qp_attr pathTo(const QueuePairAddress& peer) const;

  const NicPtr nic_;
  const CompletionQueuePtr completions_;
  const RdmaConfig config_;
  const uint32_t packetSequence_;
  uint32_t inlineBytes_ = 0;
  ibv_mtu pathMtu_ = IBV_MTU_256;
  ibv_qp* pair_ = nullptr;
};

} // namespace dlslime::rdma
