#pragma once

#include <deque>
#include <map>

#include "interface/transport.h"
#include "transports/common/piece_copies.h"
#include "transports/loopback/inside_pulls.h"

namespace dlslime::loopback {

// Connection of a process to itself. Under the engine's lock.
class LoopbackConnection final : public Connection,
                                 public PullAbility,
                                 public RmaAbility,
                                 public CopyAbility {
 public:
  LoopbackConnection();

  ConnectionInfo info() const override {
    return ConnectionInfo("memcpy");
  }
  bool send(const MessageHeader& header, ByteSpan payload) override;
  RemoteBuffer expose(uint64_t id, MemoryView view) override;
  void unexpose(uint64_t id) override {
    exposed_.erase(id);
  }
  bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) override;
  void abandon(uint64_t pullId) override {
    pulls_.abandon(pullId);
  }
  void endPulls() override;
  bool direct(
      const RemoteBuffer& /*there*/,
      const Registration* /*registration*/) const override {
    return true;
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
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  bool claimCopy(CopyJob& job) override;
  void finishCopy(const CopyJob& job) override;

 private:
  struct Packet {
    MessageHeader header;
    Bytes payload;
  };
  std::deque<Packet> packets_;
  // Memory that may be pulled, by id, like the memory regions of a NIC.
  std::map<uint64_t, MemoryView> exposed_;
  InsidePulls pulls_;
  PieceCopies transfers_;
};

} // namespace dlslime::loopback
