#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "interface/accelerator.h"
#include "interface/bulk_payload.h"
#include "interface/memory.h"
#include "interface/message.h"
#include "interface/side_socket.h"

namespace dlslime {

// A message that was sent, and that the peer may not have taken.
struct SentMessage {
  MessageHeader header;
  Bytes payload;
};

// What a Connection tells its owner, from inside poll().
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  // `payload` is valid during the call only, and may be shared with the peer:
  // read each byte once. `header` is a private copy.
  virtual void onMessage(const MessageHeader& header, ByteSpan payload) = 0;
  // The placement of a message of which only `begin` has come, so that the rest
  // need not be copied. No places: it is taken whole, by onMessage().
  virtual Placement placementOf(
      const MessageHeader& /*header*/,
      ByteSpan /*begin*/) {
    return {};
  }
  // All of a message has come, and is in its places but for a fault;
  // it is not told by onMessage().
  virtual void onPlaced(const MessageHeader& /*header*/, Fault /*fault*/) {}
  // A pull has ended: nothing will touch its memory any more. kDenied: it
  // can't be had this way any more, and may be asked for again. kOwnFault,
  // kPeerFault: the memory of one end can't be touched.
  virtual void onPulled(uint64_t pullId, const Status& status) = 0;
  // A transfer has ended: nothing will touch its local memory any more. The
  // same codes as with onPulled().
  virtual void onTransferred(uint64_t /*id*/, const Status& /*status*/) {}
  // A pull ends badly, as onPulled() is about to tell; but so many bytes from
  // its beginning are there.
  virtual void onPartlyPulled(uint64_t /*pullId*/, size_t /*arrived*/) {}
  // A push has ended: nothing will read its memory any more.
  virtual void onPushed(uint64_t /*pushId*/, const Status& /*status*/) {}
  // The peer has written so many bytes into what was offered under that id, as
  // the message whose sequence number ends in these bits.
  virtual void
  onLanded(uint64_t /*offerId*/, uint16_t /*sequenceBits*/, size_t /*length*/) {
  }
  // The peer has severed its end, and sends nothing more.
  virtual void onParted() {}
};

// What one start() moves, between registered memory of both ends.
struct TransferWork {
  uint64_t id = 0; // the owner's
  bool write = false; // to the peer
  std::span<const Piece> pieces; // the array stays until the end is told
  RemoteBuffer remote; // by the peer's reach()
  const void* registration = nullptr; // of the local memory: MemoryRegistrar
};

// One piece of a large copy, or several small ones. It is claimed and given
// back under the engine's lock and run outside of it, so that posting threads
// never wait for memory.
struct CopyJob {
  // Returns 0 for success, an errno, or a CopyFault's code.
  int (*run)(const CopyJob& job) = nullptr;
  std::span<const Piece> pieces; // not empty: in place of the next three
  std::byte* local = nullptr;
  uint64_t remote = 0;
  size_t size = 0;
  int pid = 0; // whose memory `remote` is in, for process_vm_readv/writev
  int error = 0; // what run() returned
  uint64_t token = 0; // the Connection's own
};

// Messages taken in one poll, so that a flood can't keep the lock for long.
constexpr int kMessagesPerPoll = 64;

// What a route can do about memory before it is used.
class MemoryRegistrar {
 public:
  virtual ~MemoryRegistrar() = default;
  // Any thread, not under the engine's lock, since it may take milliseconds.
  // The memory stays prepared while somebody has the result. Null: not worth
  // it, or it can't be done, which shows when the memory is used.
  virtual std::shared_ptr<const void> prepare(MemoryView view) = 0;
  // For one-sided transfers: exactly this memory, which its owner keeps for as
  // long as somebody has the result. Throws Error.
  virtual std::shared_ptr<const void> registerRegion(MemoryView view) = 0;
  // Idle: users' memory that stays locked for its next use. Any thread, not
  // under the engine's lock.
  virtual MemoryUse memoryUse() {
    return {};
  }
  virtual void trim() {}
  // Gives GPUs back what their programs have freed. The same.
  virtual void dropFreed() {}
};

// Ordered, reliable control messages with a small payload between two
// processes, and, where pull() can, bulk copies that bypass the peer's CPU.
// Every call is made under the engine's lock and none blocks.
class Connection {
 public:
  virtual ~Connection() = default;

  virtual std::string_view route() const = 0; // "shm"
  virtual std::string_view copyName() const = 0; // "cma": how bulk travels
  // The devices that it goes by, for users: "mlx5_0:1, mlx5_1:1",
  virtual std::string describe() const {
    return "";
  }
  // how many they are, for comparison; the same number at both ends,
  virtual size_t lanes() const {
    return 1;
  }
  // and how good they are for this end.
  virtual size_t merit() const {
    return lanes();
  }
  virtual size_t maxPayload() const = 0; // bytes per message
  // The socket on which the two have met, on which any byte wakes the other end
  // from now on; -1: it has been closed. It is not the connection's to close.
  virtual void useSocket(int /*fd*/) {}
  // Another process of this host, to which GPUs' memory may be shown.
  virtual bool onThisHost() const {
    return false;
  }
  // That process, in our namespace of pids, if we may read its memory, which
  // has been tried; else 0. May become 0 later.
  virtual uint32_t peerPid() const {
    return 0;
  }
  // Bulk copies may be from and to memory of GPUs. False: it is never given to
  // expose(), pull(), offer() or push().
  virtual bool takesGpus() const {
    return false;
  }

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

  // Null: bytes are to be copied into the payload of send().
  virtual Gatherer* gatherer() {
    return nullptr;
  }

  // Null: memory needs no preparation. Lives as long as the Transport.
  virtual MemoryRegistrar* registrar() {
    return nullptr;
  }
  virtual MemoryUse memoryUse() const {
    return {};
  }
  // Gives back what holds nothing now; it comes back when it is needed.
  virtual void trim() {}
  // What is posted between these two calls may go out together, at the end.
  virtual void beginBatch() {}
  virtual void endBatch() {}
  // Names local memory for the peer's pull(). Valid until the owner forgets
  // `id`; a peer that asks for it later reads stale bytes of this process and
  // harms only itself.
  virtual RemoteBuffer expose(uint64_t id, MemoryView view) = 0;
  virtual void unexpose(uint64_t id) = 0;
  // Fetches destination.size bytes of what the peer exposed as `peerId`; ends
  // with onPulled(pullId). False: it does not, since that can't be or is not
  // worth it; then the sender is to stream it in kData messages.
  [[nodiscard]] virtual bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) = 0;
  // Stop early. onPulled(kCancelled) still comes, once nothing can write into
  // the destination any more.
  virtual void abandon(uint64_t pullId) = 0;

  // --- Writing where the peer wants it: optional -------------------------
  // Messages of which size, in bytes, may be pushed. None: least > most.
  struct PushRange {
    size_t least = 1;
    size_t most = 0;
  };
  virtual PushRange pushRange() const {
    return {};
  }
  // Names memory for one push() by the peer, until withdraw(). Nothing: not
  // this memory, or not now.
  virtual std::optional<RemoteBuffer> offer(
      uint64_t /*id*/,
      MemoryView /*view*/) {
    return std::nullopt;
  }
  virtual void withdraw(uint64_t /*id*/) {}
  // Writes what the peer has offered, as the message with this sequence
  // number. kPosted: ends with onPushed(id). kNever: this memory can't be.
  enum class Push : uint8_t { kPosted, kNoRoom, kNever };
  virtual Push push(
      uint64_t /*id*/,
      RemoteBuffer /*target*/,
      MemoryView /*source*/,
      uint64_t /*sequence*/) {
    return Push::kNever;
  }

  // --- One-sided transfers: optional -------------------------------------
  // Whether they bypass the peer's CPU, between what its reach() has named and
  // what is enrolled here (null: not known yet); else the owner sends messages.
  virtual bool direct(const RemoteBuffer& /*there*/, const void* /*enrolled*/)
      const {
    return false;
  }
  // What the peer's start() needs to get at registered memory; `enrolled` by
  // registrar(), or null without one.
  virtual RemoteBuffer reach(MemoryView view, const void* /*enrolled*/) {
    return {reinterpret_cast<uint64_t>(view.data), {}, 0};
  }
  // Ends with onTransferred(work.id).
  virtual void start(const TransferWork& /*work*/) {}
  // Stop early: onTransferred(kCancelled) still comes, as with abandon().
  virtual void stop(uint64_t /*transferId*/) {}

  // Takes up to `most` of the messages that have arrived. True if anything
  // happened; a status that is not ok means the connection is broken: it is
  // polled on until its pulls have ended, and nothing is sent any more.
  virtual bool poll(ConnectionEvents& events, Status& broken, int most) = 0;
  // Copy work that this or the peer's pulls offer. False: none now.
  virtual bool claimCopy(CopyJob& /*job*/) {
    return false;
  }
  virtual void finishCopy(const CopyJob& /*job*/) {}

  // The peer is copying the last pieces of a transfer: it ends within some
  // hundred microseconds, sooner than a sleeper wakes.
  virtual bool endsSoon() const {
    return false;
  }

  // The connection has failed: the peer does nothing for its pulls any more, so
  // they and all transfers end without it. Nothing that was offered is written
  // from now on.
  virtual void endPulls() = 0;
  // The peer has closed its end: nobody will read what is sent, but what it
  // sent before may still be polled.
  virtual void peerClosed() {}
  // After that, or after sever(): poll() has seen all that it sent, and
  // nothing of what was started here is going on.
  virtual bool drained() const {
    return true;
  }

  // Nothing that was sent would be lost with this process; asked again and
  // again, and poll() in between.
  virtual bool allSent() {
    return true;
  }

  // --- Being replaced by another one: optional ---------------------------
  enum class Replaceable : uint8_t {
    kNever,
    kWhole, // as long as it works: both ends sever it, and nothing is lost
    kBroken, // always: what it may have lost is unconfirmed()
  };
  virtual Replaceable replaceable() const {
    return Replaceable::kNever;
  }
  // Nothing more is sent; poll() goes on, and may find it broken, until it is
  // drained().
  virtual void sever() {}
  // Of a broken connection: what the peer may not have taken, oldest first.
  virtual std::vector<SentMessage> unconfirmed() const {
    return {};
  }
  // At the initiator, before the connection is used: whether messages pass,
  // which some routes learn only by sending one. False: not known yet; true:
  // they do, and the other end's confirm() is to be told this. Throws Error:
  // they don't.
  virtual bool verify(Bytes& /*result*/) {
    return true;
  }
  virtual void confirm(ByteSpan /*result*/) {} // throws Error
  // Ends the route's own threads, once what was handed to it has gone out, or
  // `atOnce`. False: that still goes on; call it again. Does not wait; not
  // under the engine's lock.
  virtual bool close(bool /*atOnce*/) {
    return true;
  }
};

// What one end of a new connection hands to the other through the control
// socket. Descriptors travel only where the socket is a unix one.
struct Offer {
  Bytes blob;
  std::vector<UniqueFd> fds;
};

// What a transport may know of the other process, from its address record.
struct PeerIdentity {
  Bytes instance; // 16 random bytes, one per engine
  std::string bootId;
  std::string host; // for texts only; never compared
  uint64_t networkNamespace = 0;
  uint32_t pid = 0;
  uint32_t uid = 0;
};

// Makes the connections of one route.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // For `doctor`: what it works with here. Throws Error: it does not, because.
  virtual std::string describe() {
    return "works";
  }
  // Ok, or why this route can't join the two processes.
  virtual Status reaches(const PeerIdentity& self, const PeerIdentity& peer)
      const = 0;
  // Connecting takes three calls: the initiator offers, the other end accepts
  // (and gets its Connection), the initiator finishes with the answer. Each
  // may throw Error; `context` is of this connection.
  struct Context {
    std::shared_ptr<void> carrierSource; // see interface/carrier.h
    std::string nonce; // the same at both ends, new for each connection
    bool initiator = false;
    PeerIdentity peer; // as it says itself: for texts alone
    // Of this host, as the kernel knows it; 0: it is not in our namespace.
    uint32_t peerPid = 0;
    OpenSideSocket sideSocket{}; // may be called after this object is gone
  };
  virtual Offer offer(const Context& context) = 0;
  virtual std::unique_ptr<Connection>
  accept(const Context& context, Offer offer, Offer& answer) = 0;
  virtual std::unique_ptr<Connection> finish(
      const Context& context,
      Offer answer) = 0;
  // The offer came to nothing.
  virtual void withdraw(const Context& /*context*/) {}

  // Descriptors that become readable when a sleeping process has something to
  // do; drainFd() makes them quiet again.
  virtual std::vector<int> wakeFds() const {
    return {};
  }
  virtual void drainWakeFds() {}
  // Between these two calls peers must ring before they expect progress.
  virtual void beginSleep() {}
  virtual void endSleep() {}

  // Descriptors that become readable when devices tell of themselves, and what
  // to do then, on the thread that makes connections. `down`: some connections
  // are of no use any more, and will be found broken; `up`: better ones may
  // have become possible.
  struct DeviceNews {
    bool down = false;
    bool up = false;
  };
  virtual std::vector<int> deviceFds() const {
    return {};
  }
  virtual DeviceNews onDevices() {
    return {};
  }
};

} // namespace dlslime
