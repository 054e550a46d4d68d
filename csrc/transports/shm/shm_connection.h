#pragma once

#include <memory>

#include "base/memory/passed_descriptors.h"
#include "base/memory/segment.h"
#include "interface/transport.h"
#include "transports/common/piece_copies.h"
#include "transports/shm/assists.h"
#include "transports/shm/doorbell.h"
#include "transports/shm/layout.h"
#include "transports/shm/pulls.h"
#include "transports/shm/ring.h"

namespace dlslime::shm {

// Connects two processes of a host by a ring each way for messages, and by
// direct copies between the processes' memories, shared by both ends. The owner
// streams large messages through the rings if the kernel permits neither end to
// copy, or if both ends are awake and streaming is faster.
class ShmConnection final : public Connection,
                            public PullAbility,
                            public RmaAbility,
                            public CopyAbility {
 public:
  struct Ends {
    Segment segment;
    RemoteDoorbell doorbell;
    size_t ringBytes;
    uint32_t peerPid;
    int side; // 0: the initiator; 1: the acceptor
  };
  // Writes the access word of the end; both ends are constructed before either
  // sends. `granted`: an attempt has shown access to the peer's memory to be
  // permitted.
  ShmConnection(Ends ends, bool granted);

  ConnectionInfo info() const override;
  void useSocket(int fd) override {
    doorbell_.useSocket(fd);
  }
  bool passDescriptor(uint64_t number, int fd) override {
    return dlslime::passDescriptor(doorbell_.socket(), number, fd);
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
  bool direct(
      const RemoteBuffer& /*there*/,
      const Registration* /*registration*/) const override {
    return granted_;
  }
  RemoteBuffer reach(MemoryView view, const Registration* /*registration*/)
      override {
    return {reinterpret_cast<uint64_t>(view.data), {}, 0};
  }
  void start(const TransferWork& work) override {
    transfers_.start(work);
  }
  void stop(uint64_t transferId) override {
    transfers_.stop(transferId);
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
  bool granted_; // access to the peer's memory, until refused
  RingProducer out_;
  RingConsumer in_;
  Assists assists_;
  PieceCopies transfers_;
  std::unique_ptr<Pulls> pulls_; // null until the first pull
  bool ended_ = false;
};

} // namespace dlslime::shm
