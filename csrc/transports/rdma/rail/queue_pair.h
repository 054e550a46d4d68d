#pragma once

#include "base/bytes.h"
#include "transports/rdma/device/handles.h"
#include "transports/rdma/device/nic.h"

namespace dlslime::rdma {

// What the peer needs for connecting to a queue pair.
struct QueuePairAddress {
  uint32_t number = 0;
  uint32_t packetSequence = 0; // of the first packet sent, 24 bits
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  bool ethernet = true;
  // Whether the port drops packets without a global header.
  bool globalHeader = false;
  // RDMA READs served at a time.
  uint8_t maxReadsIn = 1;
  ibv_gid gid{};

  void write(ByteWriter& writer) const;
  // Throws Error{kPeerFailed} if a value is invalid.
  static QueuePairAddress read(ByteReader& reader);
};

// Work request id of every posted receive; SendQueue never makes 0.
constexpr uint64_t kReceiveId = 0;

struct QueueDepths {
  uint32_t sends = 0;
  uint32_t receives = 0;
  uint32_t inlineBytes = 0; // at most; the device may support less
};

// A queue pair of type RC (reliable connection). The constructor goes from
// RESET to INIT, connect() to RTR and RTS. Not thread-safe.
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
  // Returns the size of the largest packet on the path, in bytes. Valid after
  // connect().
  uint32_t packetBytes() const {
    return 128U << pathMtu_;
  }
  // Throws Error.
  void connect(const QueuePairAddress& peer);
  // Ends all requests with flush errors. Afterwards the device touches no
  // memory on behalf of the queue pair. Idempotent.
  void toError() noexcept;
  // Returns null if the device took all of `list`; else the first request
  // refused (all later requests are refused, too), with the errno in `error`.
  ibv_send_wr* postSend(ibv_send_wr* list, int& error);
  bool postReceives(uint32_t count);

 private:
  int tryModify(ibv_qp_attr& attributes, int mask);
  void modify(ibv_qp_attr& attributes, int mask, const char* step);
  void toInit();
  void toReadyToReceive(const QueuePairAddress& peer);
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
