#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "interface/bulk_payload.h"
#include "interface/connection_abilities.h"
#include "interface/counters.h"
#include "interface/memory.h"
#include "interface/message.h"

namespace dlslime {

// What a Connection tells its owner, from inside poll().
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  // `payload` is valid during the call only, and may be shared with the peer:
  // read each byte once. `header` is a private copy.
  virtual void onMessage(const MessageHeader& header, ByteSpan payload) = 0;
  // The placement of a message of which only `begin` has come, so that the rest
  // need not be copied. No places: the message is taken whole, by onMessage().
  virtual Placement placementOf(
      const MessageHeader& /*header*/,
      ByteSpan /*begin*/) {
    return {};
  }
  // All of a message has come, and is in its places but for a fault;
  // onMessage() does not tell it.
  virtual void onPlaced(const MessageHeader& /*header*/, Fault /*fault*/) {}
  // A pull has ended: nothing will touch its memory any more. kDenied: pulling
  // is not possible any more, and the message may be asked for in another way.
  // kOwnFault, kPeerFault: the memory of one end can't be touched.
  virtual void onPulled(uint64_t pullId, const Status& status) = 0;
  // A pull ends badly, as onPulled() is about to tell; but so many bytes from
  // its beginning are there.
  virtual void onPartlyPulled(uint64_t /*pullId*/, size_t /*arrived*/) {}
  // A transfer has ended: nothing will touch its local memory any more. The
  // codes are those of onPulled().
  virtual void onTransferred(uint64_t /*id*/, const Status& /*status*/) {}
  // A push has ended: nothing will read its memory any more.
  virtual void onPushed(uint64_t /*pushId*/, const Status& /*status*/) {}
  // The peer has written so many bytes into the memory offered under this id,
  // as the message whose sequence number ends in these bits.
  virtual void
  onLanded(uint64_t /*offerId*/, uint16_t /*sequenceBits*/, size_t /*length*/) {
  }
  // The peer has severed its end, and sends nothing more.
  virtual void onParted() {}
};

// Most messages taken in one poll, so that a flood can't keep the lock for
// long.
constexpr int kMessagesPerPoll = 64;

// For reports and for comparing connections.
struct ConnectionInfo {
  ConnectionInfo() = default;
  explicit ConnectionInfo(std::string_view copies) : copyName(copies) {}

  std::string_view copyName; // how bulk data travels: "cma"
  std::string devices; // for users: "mlx5_0:1, mlx5_1:1"
  std::vector<NicTraffic> nics; // in the order of `devices`
  size_t lanes = 1; // number of devices; the same at both ends
  size_t merit = 1; // how good the devices are for this end
  // Of the peer, in this process's namespace of pids, if this process may read
  // its memory, which has been tried; else 0. May become 0 later.
  uint32_t peerPid = 0;
  MemoryUse memory;
};

// Ordered, reliable messages with a small payload between two processes. What a
// route can do besides is in its abilities. Every call is made under the
// engine's lock and none blocks.
class Connection {
 public:
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::string_view route() const { // "shm"
    return facts_.route;
  }
  size_t maxPayload() const { // bytes of one message
    return facts_.maxPayload;
  }
  // The peer is another process of this host, to which memory of GPUs may be
  // shown.
  bool onThisHost() const {
    return facts_.onThisHost;
  }
  // Bulk copies may be from and to memory of GPUs. False: no ability is ever
  // given such memory.
  bool takesGpus() const {
    return facts_.takesGpus;
  }
  virtual ConnectionInfo info() const = 0;

  // False: a send() of so much would find no room now. Asked where the payload
  // has to be made first.
  virtual bool hasRoom(size_t /*payload*/) {
    return true;
  }
  // False: no room now; the caller keeps the message and tries again after a
  // later poll(). Throws nothing: a broken connection shows in poll().
  [[nodiscard]] virtual bool send(
      const MessageHeader& header,
      ByteSpan payload) = 0;
  // Takes up to `most` of the messages that have arrived. True if anything
  // happened. A status that is not ok means the connection is broken: it is
  // polled on until its pulls have ended, and nothing is sent any more.
  virtual bool poll(ConnectionEvents& events, Status& broken, int most) = 0;

  // Abilities; null: the route lacks it.
  Gatherer* gatherer() const { // null: bytes are copied into send()'s payload
    return abilities_.gatherer;
  }
  MemoryRegistrar* registrar() const { // null: memory needs no preparation
    return abilities_.registrar;
  }
  PullAbility* pulling() const {
    return abilities_.pulling;
  }
  PushAbility* pushing() const {
    return abilities_.pushing;
  }
  RmaAbility* rma() const {
    return abilities_.rma;
  }
  CopyAbility* copying() const {
    return abilities_.copying;
  }
  BatchAbility* batching() const {
    return abilities_.batching;
  }
  VerifyAbility* verifying() const {
    return abilities_.verifying;
  }
  ReplaceAbility* replacing() const {
    return abilities_.replacing;
  }
  ReplaceAbility::When replaceable() const {
    return replacing() != nullptr ? replacing()->replaceable()
                                  : ReplaceAbility::When::kNever;
  }

  // Takes the socket on which the two ends have met; from now on any byte on it
  // wakes the other end. -1: it has been closed. Its owner closes it.
  virtual void useSocket(int /*fd*/) {}
  // Passes a descriptor of this process, with a number, to the peer over the
  // socket. False: the route can't, or not now.
  virtual bool passDescriptor(uint64_t /*number*/, int /*fd*/) {
    return false;
  }
  // Gives back what holds nothing now; it comes back when it is needed.
  virtual void trim() {}
  // The connection has failed: the peer does nothing for its pulls any more, so
  // that they and all transfers end without it. Nothing is written into offered
  // memory from now on.
  virtual void endPulls() {}
  // The peer has closed its end: it will read nothing, but what it sent before
  // may still be polled.
  virtual void peerClosed() {}
  // After peerClosed() or sever(): poll() has seen all that the peer sent, and
  // nothing of what was started here is going on.
  virtual bool drained() const {
    return true;
  }
  // Nothing that was sent would be lost with this process; asked again and
  // again, with poll() in between.
  virtual bool allSent() {
    return true;
  }
  // Ends the route's own threads, once what was handed to it has gone out, or
  // `atOnce`. False: not yet; call it again. Not under the engine's lock.
  virtual bool close(bool /*atOnce*/) {
    return true;
  }

 protected:
  struct Facts {
    std::string_view route;
    size_t maxPayload = 0;
    bool onThisHost = false;
    bool takesGpus = false;
  };
  struct Abilities {
    Gatherer* gatherer = nullptr;
    MemoryRegistrar* registrar = nullptr;
    PullAbility* pulling = nullptr;
    PushAbility* pushing = nullptr;
    RmaAbility* rma = nullptr;
    CopyAbility* copying = nullptr;
    BatchAbility* batching = nullptr;
    VerifyAbility* verifying = nullptr;
    ReplaceAbility* replacing = nullptr;
  };
  explicit Connection(Facts facts) : facts_(facts) {}

  Facts facts_;
  Abilities abilities_; // set before the connection is handed over
};

} // namespace dlslime
