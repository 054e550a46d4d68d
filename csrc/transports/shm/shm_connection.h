#pragma once

#include <memory>

#include "base/memory/segment.h"
#include "interface/transport.h"
#include "transports/common/piece_copies.h"
#include "transports/shm/assists.h"
#include "transports/shm/doorbell.h"
#include "transports/shm/layout.h"
#include "transports/shm/pulls.h"
#include "transports/shm/ring.h"

namespace dlslime::shm {

// Two processes of one host: a ring each way for messages, and copies between
// their memories shared by both ends. Where the kernel permits those copies
// to neither, and where both ends are awake and it is faster, its owner streams
// through the rings.
class ShmConnection final : public Connection {
 public:
  struct Ends {
    Segment segment;
    RemoteDoorbell doorbell;
    size_t ringBytes;
    uint32_t peerPid;
    int side; // 0 initiated the connection
  };
  // Both ends have written their access word before any of them sends.
  // `granted`: we may get at the peer's memory, which has been tried.
  ShmConnection(Ends ends, bool granted);

  bool onThisHost() const override {
    return true;
  }
  void useSocket(int fd) override {
    doorbell_.useSocket(fd);
  }
  uint32_t peerPid() const override {
    return granted_ ? peerPid_ : 0;
  }
  std::string_view route() const override {
    return "shm";
  }
  std::string_view copyName() const override {
    return memoryReadable() ? "cma" : "staged";
  }
  size_t maxPayload() const override {
    return maxRingPayload(ringBytes_);
  }
  bool hasRoom(size_t payload) override {
    return out_.hasRoom(payload);
  }
  bool send(const MessageHeader& header, ByteSpan payload) override;
  RemoteBuffer expose(uint64_t id, MemoryView view) override;
  void unexpose(uint64_t id) override;
  bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) override;
  void abandon(uint64_t pullId) override;
  bool direct(const RemoteBuffer& /*there*/, const void* /*enrolled*/)
      const override {
    return granted_;
  }
  void start(const TransferWork& work) override {
    transfers_.start(work);
  }
  void stop(uint64_t transferId) override {
    transfers_.stop(transferId);
  }
  MemoryUse memoryUse() const override {
    return {out_.touched(), kLayoutBytes};
  }
  void trim() override {
    out_.trim();
  }
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  bool claimCopy(CopyJob& job) override;
  void finishCopy(const CopyJob& job) override;
  bool endsSoon() const override;
  void endPulls() override;

 private:
  Layout& layout() const {
    return *reinterpret_cast<Layout*>(segment_.data());
  }
  std::byte* ringData(int side) const {
    return segment_.data() + kLayoutBytes +
        static_cast<size_t>(side) * ringBytes_;
  }
  bool peerGranted() const;
  bool memoryReadable() const;
  void lose(int error);
  Pulls& pulls();

  Segment segment_;
  RemoteDoorbell doorbell_;
  const size_t ringBytes_;
  const uint32_t peerPid_;
  const int side_;
  bool granted_; // we may get at the peer's memory, until it is refused
  RingProducer out_;
  RingConsumer in_;
  Assists assists_;
  PieceCopies transfers_;
  std::unique_ptr<Pulls> pulls_; // made at the first pull: it needs both words
  bool ended_ = false;
};

} // namespace dlslime::shm
