#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/threads/mutex.h"
#include "interface/transport.h"
#include "transports/common/piece_copies.h"
#include "transports/loopback/inside_pulls.h"

namespace dlslime::testing {

// Faults made on purpose, reproducible by the seed.
struct Faults {
  uint64_t seed = 0;
  int maxDelayPolls = 0; // most polls that a message or pull waits
  bool reorder = false; // delayed messages may be overtaken
  int refusePercent = 0; // of calls of send(), offer(), push()
  bool duplicate = false; // some messages arrive twice
  uint64_t breakAfter = 0; // messages until a break; 0: no break
  bool framed = false; // nothing is pulled: large messages are streamed
  bool pushes = false; // memory can be offered and pushed into
  bool replaceable = false; // every message is kept for a replacement
};

// Wire between two ends in a process.
class Wire {
 public:
  struct Packet {
    MessageHeader header;
    Bytes payload;
    int delay = 0;
    uint64_t landedId = 0; // not 0: a push into the offer, no message
  };
  // Memory offered by an end for a push.
  struct Offer {
    uint64_t id = 0;
    MemoryView view;
  };
  Mutex mutex;
  std::deque<Packet> toEnd[2] GUARDED_BY(mutex);
  // Memory that each end lets the peer read, by id, like the memory regions of
  // a NIC: reading anything else fails.
  std::map<uint64_t, MemoryView> exposed[2] GUARDED_BY(mutex);
  std::map<uint16_t, Offer> offered[2] GUARDED_BY(mutex); // by slot
  // The end sends nothing and gets nothing new.
  bool severed[2] GUARDED_BY(mutex) = {};
  // wake[end] is called, outside of the mutex, after a packet for the end was
  // put on the wire.
  std::function<void()> wake[2];
};

// Connection between two ends in a process, with faults where wanted: refuses,
// delays, reorders and duplicates messages, or breaks.
class FaultyConnection final : public Connection,
                               public PullAbility,
                               public PushAbility,
                               public RmaAbility,
                               public CopyAbility,
                               public ReplaceAbility {
 public:
  // Receives from wire->toEnd[end] and sends to wire->toEnd[peerEnd].
  FaultyConnection(
      std::shared_ptr<Wire> wire,
      int end,
      int peerEnd,
      Faults faults = {});

  ConnectionInfo info() const override {
    return ConnectionInfo("memcpy");
  }
  bool send(const MessageHeader& header, ByteSpan payload) override;
  RemoteBuffer expose(uint64_t id, MemoryView view) override;
  void unexpose(uint64_t id) override;
  bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) override;
  void abandon(uint64_t pullId) override {
    pulls_.abandon(pullId);
  }
  bool direct(
      const RemoteBuffer& /*there*/,
      const Registration* /*registration*/) const override {
    return !faults_.framed;
  }
  RemoteBuffer reach(MemoryView view, const Registration* /*registration*/)
      override {
    return {reinterpret_cast<uint64_t>(view.data), {}, 0};
  }
  void start(const TransferWork& work) override;
  void stop(uint64_t transferId) override {
    transfers_.stop(transferId);
  }
  Range range() const override {
    return {1, SIZE_MAX};
  }
  std::optional<RemoteBuffer> offer(uint64_t id, MemoryView view) override;
  void withdraw(uint64_t id) override;
  Result push(
      uint64_t id,
      RemoteBuffer target,
      MemoryView source,
      uint64_t sequence) override;
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  bool claimCopy(CopyJob& job) override;
  void finishCopy(const CopyJob& job) override;
  void endPulls() override;
  When replaceable() const override {
    return When::kBroken;
  }
  void sever() override;
  bool drained() const override;
  std::vector<SentMessage> unconfirmed() const override {
    return log_;
  }

 private:
  bool chance(int percent);
  int someDelay();
  bool severed(int end) const;
  void put(Wire::Packet packet);
  bool nextPacket(Wire::Packet& packet);

  const std::shared_ptr<Wire> wire_;
  const int end_;
  const int peerEnd_;
  const Faults faults_;
  std::mt19937_64 random_;
  uint64_t delivered_ = 0;
  loopback::InsidePulls pulls_;
  PieceCopies transfers_;
  std::vector<std::pair<uint64_t, Status>> pushed_; // ended, to be reported
  std::vector<SentMessage> log_; // all messages sent, if replaceable
  uint16_t nextSlot_ = 0;
  bool misused_ = false; // a push went into memory not offered
};

} // namespace dlslime::testing
