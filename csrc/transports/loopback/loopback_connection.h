#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "interface/transport.h"
#include "transports/common/piece_copies.h"

namespace dlslime::loopback {

// What goes wrong on purpose, reproducibly for one seed. All off: the route
// that a process uses to talk to itself.
struct Faults {
  uint64_t seed = 0;
  int maxDelayPolls = 0; // a message or pull waits up to this many polls
  bool reorder = false; // messages overtake each other
  int refusePercent = 0; // send() says "no room" this often
  bool duplicate = false; // some messages arrive twice
  uint64_t breakAfter = 0; // this connection breaks after so many messages
  bool framed = false; // nothing is pulled: large messages are streamed
  bool pushes = false; // memory can be offered and pushed into
  bool replaceable = false; // every message is kept for another connection
};

// The wire between two ends in one process.
class Wire {
 public:
  struct Packet {
    MessageHeader header;
    Bytes payload;
    int delay = 0;
    uint64_t landedId = 0; // not 0: no message, but a push into this offer
  };
  // Memory that one end has offered for one push.
  struct Offer {
    uint64_t id = 0;
    MemoryView view;
  };
  std::mutex mutex;
  std::deque<Packet> toEnd[2];
  // What each end lets the other read, as a NIC knows its memory regions: who
  // asks for anything else gets an error and not the bytes.
  std::map<uint64_t, MemoryView> exposed[2];
  std::map<uint16_t, Offer> offered[2]; // by slot
  bool severed[2] = {}; // this end takes and gives nothing any more
  // Called, outside of the mutex, after something was put on the wire.
  std::function<void()> wake[2];
};

// The reference implementation of Connection, and the faulty one.
class LoopbackConnection final : public Connection {
 public:
  // `end` receives from wire->toEnd[end] and sends to toEnd[peerEnd]; the same
  // number twice is a process that talks to itself.
  LoopbackConnection(
      std::shared_ptr<Wire> wire,
      int end,
      int peerEnd,
      Faults faults = {});

  std::string_view route() const override {
    return "self";
  }
  std::string_view copyName() const override {
    return "memcpy";
  }
  size_t maxPayload() const override {
    return size_t{64} * 1024;
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
    return !faults_.framed;
  }
  void start(const TransferWork& work) override;
  void stop(uint64_t transferId) override {
    transfers_.stop(transferId);
  }
  PushRange pushRange() const override {
    return faults_.pushes ? PushRange{1, SIZE_MAX} : PushRange{};
  }
  std::optional<RemoteBuffer> offer(uint64_t id, MemoryView view) override;
  void withdraw(uint64_t id) override;
  Push push(
      uint64_t id,
      RemoteBuffer target,
      MemoryView source,
      uint64_t sequence) override;
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  bool claimCopy(CopyJob& job) override;
  void finishCopy(const CopyJob& job) override;
  void endPulls() override;
  Replaceable replaceable() const override {
    return faults_.replaceable ? Replaceable::kBroken : Replaceable::kNever;
  }
  void sever() override;
  bool drained() const override;
  std::vector<SentMessage> unconfirmed() const override {
    return log_;
  }

 private:
  struct Pull {
    uint64_t id = 0;
    uint64_t peerId = 0;
    MemoryView destination;
    uint64_t source = 0;
    size_t claimed = 0;
    int running = 0;
    int delay = 0;
    Status stopped; // why it ends early
  };
  bool chance(int percent);
  int someDelay();
  bool severed(int end) const;
  void put(Wire::Packet packet);
  bool nextPacket(Wire::Packet& packet);
  MemoryView sourceOf(const Pull& pull);
  bool pollPulls(ConnectionEvents& events);

  const std::shared_ptr<Wire> wire_;
  const int end_;
  const int peerEnd_;
  const Faults faults_;
  std::mt19937_64 random_;
  uint64_t delivered_ = 0;
  std::deque<Pull> pulls_;
  PieceCopies transfers_;
  std::vector<std::pair<uint64_t, Status>> pushed_; // to be reported
  std::vector<SentMessage> log_; // of what was sent, if replaceable
  uint16_t nextSlot_ = 0;
  bool misused_ = false; // a push went where nothing was offered
};

} // namespace dlslime::loopback
