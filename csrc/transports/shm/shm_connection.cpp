#include "transports/shm/shm_connection.h"

#include "base/log.h"
#include "transports/shm/cma.h"

namespace dlslime::shm {

namespace {
// Both bits mark the token of a job for finishCopy(), as an assist or a
// transfer; ids of pulls never have the bits.
constexpr uint64_t kAssistBit = 1ULL << 63;
constexpr uint64_t kTransferBit = 1ULL << 62;
// Bytes of the largest message streamed between awake ends. Up to the limit two
// copies through the ring, each by a separate core, are faster than
// process_vm_readv and process_vm_writev by both ends (1 MiB: 72 against 94
// us).
constexpr size_t kMostStreamedBytes = 2 * 1024 * 1024;
} // namespace

ShmConnection::ShmConnection(Ends ends, bool granted)
    : Connection({"shm", maxRingPayload(ends.ringBytes), true}),
      segment_(std::move(ends.segment)),
      doorbell_(std::move(ends.doorbell)),
      ringBytes_(ends.ringBytes),
      peerPid_(ends.peerPid),
      side_(ends.side),
      granted_(granted),
      out_(layout().ring[side_], ringData(side_), ringBytes_),
      in_(layout().ring[1 - side_], ringData(1 - side_), ringBytes_),
      assists_(layout().desk[side_], peerPid_),
      transfers_({readFromPeer, writeToPeer, static_cast<int>(peerPid_)}) {
  abilities_.pulling = this;
  abilities_.rma = this;
  abilities_.copying = this;
  layout().access[side_].store(
      granted ? Access::kGranted : Access::kDenied, std::memory_order_release);
}

ConnectionInfo ShmConnection::info() const {
  ConnectionInfo info(memoryReadable() ? "cma" : "staged");
  info.peerPid = granted_ ? peerPid_ : 0;
  info.memory = {out_.touched(), kLayoutBytes};
  return info;
}

// Returns true if the peer may copy. A peer that was refused before is not
// asked again, regardless of its access word.
bool ShmConnection::peerGranted() const {
  return !(pulls_ && pulls_->senderDenied()) &&
      layout().access[1 - side_].load(std::memory_order_acquire) ==
      Access::kGranted;
}

bool ShmConnection::memoryReadable() const {
  return granted_ || peerGranted();
}

// Gives up copying after the kernel has withdrawn the permission: a process has
// changed user, or a setting of the host was changed. The owner repeats
// unfinished pulls and transfers in a different way.
void ShmConnection::lose(int error) {
  if (!granted_) {
    return;
  }
  granted_ = false;
  layout().access[side_].store(Access::kDenied, std::memory_order_release);
  logInfo(
      "copying from and to the memory of process " + std::to_string(peerPid_) +
      " is permitted no longer: " + errnoText(error) +
      "; large messages are streamed through shared memory");
  doorbell_.ring();
}

bool ShmConnection::send(const MessageHeader& header, ByteSpan payload) {
  if (!out_.push(header, payload)) {
    return false;
  }
  doorbell_.ring();
  return true;
}

RemoteBuffer ShmConnection::expose(uint64_t id, MemoryView view) {
  assists_.expose(id, view);
  return {reinterpret_cast<uint64_t>(view.data), {}, 0};
}

void ShmConnection::unexpose(uint64_t id) {
  assists_.unexpose(id);
}

Pulls& ShmConnection::pulls() {
  if (!pulls_) {
    pulls_ = std::make_unique<Pulls>(layout().desk[1 - side_], peerPid_);
  }
  return *pulls_;
}

bool ShmConnection::pull(
    uint64_t pullId,
    uint64_t peerId,
    RemoteBuffer source,
    MemoryView destination) {
  // A sleeping or computing sender would first have to be woken to stream.
  const bool stream =
      destination.size <= kMostStreamedBytes && doorbell_.awake();
  if (stream || !memoryReadable()) {
    return false;
  }
  pulls().start(pullId, peerId, source, destination);
  if (!granted_) {
    doorbell_.ring(); // the sender copies alone, and must be awake
  }
  return true;
}

void ShmConnection::abandon(uint64_t pullId) {
  pulls().abandon(pullId);
}

bool ShmConnection::poll(ConnectionEvents& events, Status& broken, int most) {
  if (doorbell_.unrung()) {
    doorbell_.ring();
  }
  if (pulls_ && !memoryReadable()) {
    pulls_->denyAll();
  }
  bool any = pulls_ && pulls_->poll(events);
  any |= !transfers_.empty() && transfers_.report(events);
  if (pulls_ && pulls_->corrupted()) {
    broken = Status(
        ErrorCode::kTransportFailed,
        "the copy desk of a transfer holds impossible values: process " +
            std::to_string(peerPid_) + " has overwritten the shared memory");
    return true;
  }
  MessageHeader header;
  ByteSpan payload;
  for (int i = 0; i < most; ++i) {
    const auto next = in_.peek(header, payload);
    if (next == RingConsumer::Next::kNone) {
      break;
    }
    if (next == RingConsumer::Next::kBroken) {
      broken = Status(
          ErrorCode::kTransportFailed,
          "the shared ring holds an invalid record: process " +
              std::to_string(peerPid_) + " has overwritten the shared memory");
      return true;
    }
    events.onMessage(header, payload);
    in_.pop();
    any = true;
  }
  if (any && in_.takeProducerWaits()) {
    doorbell_.ring();
  }
  return any;
}

bool ShmConnection::claimCopy(CopyJob& job) {
  if (granted_ && pulls_ && pulls_->claim(job)) {
    return true;
  }
  if (granted_ && !ended_ && assists_.claim(job)) {
    job.token |= kAssistBit;
    return true;
  }
  if (!transfers_.empty() && transfers_.claim(job)) {
    job.token |= kTransferBit;
    return true;
  }
  return false;
}

void ShmConnection::finishCopy(const CopyJob& job) {
  if (isRefusal(job.error)) {
    // lose() comes before the job is reported as denied, so that no repeated
    // operation tries to copy again.
    lose(job.error);
  }
  CopyJob own = job;
  own.token &= ~(kAssistBit | kTransferBit);
  if ((job.token & kTransferBit) != 0) {
    transfers_.finish(own);
    return;
  }
  if ((job.token & kAssistBit) == 0) {
    pulls_->finish(own);
    return;
  }
  assists_.finish(own);
  doorbell_.ring(); // the receiver may sleep until the piece is done
}

bool ShmConnection::endsSoon() const {
  if (ended_) {
    return false;
  }
  for (const auto& side : layout().desk) {
    for (const auto& desk : side) {
      const auto state = deskState(desk);
      if (state.taken == state.total && state.done < state.total) {
        return true;
      }
    }
  }
  return false;
}

void ShmConnection::endPulls() {
  ended_ = true;
  transfers_.stopAll();
  if (pulls_) {
    pulls_->endAll();
  }
}

} // namespace dlslime::shm
