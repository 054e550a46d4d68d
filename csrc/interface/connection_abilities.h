#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "interface/memory.h"
#include "interface/message.h"

// What some connections can do besides messages. Every call is made under the
// engine's lock and none blocks, unless a comment says otherwise.

namespace dlslime {

// Memory made known to the NICs of a connection; it stays registered as long as
// the object exists.
class Registration {
 public:
  virtual ~Registration() = default;
};
using RegistrationPtr = std::shared_ptr<const Registration>;

// Registers memory before it is used. Any thread, and not under the engine's
// lock, since a call may take milliseconds. Lives as long as the Transport.
class MemoryRegistrar {
 public:
  virtual ~MemoryRegistrar() = default;
  // For messages. Null: registering would not pay, or is not possible, which
  // shows when the memory is used.
  virtual RegistrationPtr prepare(MemoryView view) = 0;
  // For one-sided transfers: exactly this memory, which its owner keeps for as
  // long as the result lives. Throws Error.
  virtual RegistrationPtr registerRegion(MemoryView view) = 0;
  // `idle`: memory of users that stays locked for its next use.
  virtual MemoryUse memoryUse() {
    return {};
  }
  virtual void trim() {}
  // Gives GPUs back the memory that their programs have freed.
  virtual void dropFreed() {}
};

// Copies from the sender's memory into the receiver's, started by the receiver.
class PullAbility {
 public:
  // Names local memory for the peer's pull(), until unexpose(). A peer that
  // pulls it later reads stale bytes of this process and harms only itself.
  virtual RemoteBuffer expose(uint64_t id, MemoryView view) = 0;
  virtual void unexpose(uint64_t id) = 0;
  // Fetches destination.size bytes of the memory exposed as `peerId`; ends with
  // onPulled(pullId). False: it does not begin, since pulling is not possible
  // or does not pay; the sender is to stream the message.
  [[nodiscard]] virtual bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) = 0;
  // Stops early. onPulled(kCancelled) still comes, once nothing can write into
  // the destination any more.
  virtual void abandon(uint64_t pullId) = 0;

 protected:
  ~PullAbility() = default;
};

// Writes of whole messages into memory that the receiver has advertised.
class PushAbility {
 public:
  // Sizes of messages, in bytes, that may be pushed.
  struct Range {
    size_t least = 1;
    size_t most = 0;
    bool contains(size_t size) const {
      return size >= least && size <= most;
    }
  };
  virtual Range range() const = 0;
  // Names memory for one push() by the peer, until withdraw(). Nothing: not
  // this memory, or not now.
  virtual std::optional<RemoteBuffer> offer(uint64_t id, MemoryView view) = 0;
  virtual void withdraw(uint64_t id) = 0;
  // Writes into memory that the peer has offered, as the message with this
  // sequence number. kPosted: ends with onPushed(id). kNever: this source can't
  // be pushed.
  enum class Result : uint8_t { kPosted, kNoRoom, kNever };
  virtual Result push(
      uint64_t id,
      RemoteBuffer target,
      MemoryView source,
      uint64_t sequence) = 0;

 protected:
  ~PushAbility() = default;
};

// One transfer between registered memory of both ends.
struct TransferWork {
  uint64_t id = 0; // the initiator's
  bool write = false; // false: read
  std::span<const Piece> pieces; // the array stays until the transfer ends
  RemoteBuffer remote; // from the target's reach()
  const Registration* registration = nullptr; // of the local memory
};

// One-sided transfers that bypass the target's processor.
class RmaAbility {
 public:
  // Whether start() can be used between memory that the peer's reach() has
  // named and local memory of this registration (null: not known yet).
  virtual bool direct(
      const RemoteBuffer& there,
      const Registration* registration) const = 0;
  // What the peer's start() needs to get at registered memory; null: the
  // connection has no registrar.
  virtual RemoteBuffer reach(
      MemoryView view,
      const Registration* registration) = 0;
  // Ends with onTransferred(work.id).
  virtual void start(const TransferWork& work) = 0;
  // Stops early: onTransferred(kCancelled) still comes, as with abandon().
  virtual void stop(uint64_t transferId) = 0;

 protected:
  ~RmaAbility() = default;
};

// One piece of a large copy, or several small ones. It is claimed and given
// back under the engine's lock and run outside of it, so that posting threads
// never wait for memory.
struct CopyJob {
  // Returns 0 for success, an errno, or a CopyFault's code.
  int (*run)(const CopyJob& job) = nullptr;
  std::span<const Piece> pieces; // not empty: instead of the next three
  std::byte* local = nullptr;
  uint64_t remote = 0;
  size_t size = 0; // bytes
  int pid = 0; // whose memory `remote` is in, for process_vm_readv/writev
  int error = 0; // the result of run()
  uint64_t token = 0; // the connection's own
};

// Copies made by the processors of this process, for its own pulls and
// transfers and for the peer's.
class CopyAbility {
 public:
  // False: no work now.
  virtual bool claimCopy(CopyJob& job) = 0;
  virtual void finishCopy(const CopyJob& job) = 0;
  // The peer is copying the last pieces of a transfer, which ends within some
  // hundred microseconds, sooner than a sleeping thread wakes.
  virtual bool endsSoon() const {
    return false;
  }

 protected:
  ~CopyAbility() = default;
};

// Requests posted between these two calls may go out together, at the end.
class BatchAbility {
 public:
  virtual void beginBatch() = 0;
  virtual void endBatch() = 0;

 protected:
  ~BatchAbility() = default;
};

// A message that was sent, and that the peer may not have taken.
struct SentMessage {
  MessageHeader header;
  Bytes payload;
};

// Lets another connection take the place of this one.
class ReplaceAbility {
 public:
  enum class When : uint8_t {
    kNever, // not yet
    kWhole, // while it works: both ends sever it, and nothing is lost
    kBroken, // always: unconfirmed() has what may be lost
  };
  virtual When replaceable() const = 0;
  // Nothing more is sent; poll() goes on, and may find the connection broken,
  // until it is drained().
  virtual void sever() = 0;
  // Of a broken connection: what the peer may not have taken, oldest first.
  virtual std::vector<SentMessage> unconfirmed() const {
    return {};
  }

 protected:
  ~ReplaceAbility() = default;
};

// Finds out during the handshake whether messages pass, on routes where only
// sending one tells.
class VerifyAbility {
 public:
  // At the initiator, before the connection is used. False: not known yet;
  // true: messages pass, and `result` is for the other end's confirm(). Throws
  // Error: they do not pass.
  virtual bool verify(Bytes& result) = 0;
  virtual void confirm(ByteSpan result) = 0; // throws Error

 protected:
  ~VerifyAbility() = default;
};

} // namespace dlslime
