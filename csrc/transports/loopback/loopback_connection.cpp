#include "transports/loopback/loopback_connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transports/loopback/inside_copies.h"

namespace dlslime::loopback {

namespace {

constexpr size_t kPieceBytes = 1024 * 1024;
constexpr size_t kMostPayloadBytes = 64 * 1024;

constexpr uint64_t kTransferBit = 1ULL << 62; // marks a transfer's job

Status givenUp() {
  return {ErrorCode::kCancelled, "the transfer was given up"};
}

Status misuse() {
  return {
      ErrorCode::kTransportFailed, "a push into memory that is not offered"};
}

} // namespace

LoopbackConnection::LoopbackConnection(
    std::shared_ptr<Wire> wire,
    int end,
    int peerEnd,
    Faults faults)
    : Connection({"self", kMostPayloadBytes}),
      wire_(std::move(wire)),
      end_(end),
      peerEnd_(peerEnd),
      faults_(faults),
      random_(faults.seed + static_cast<uint64_t>(end)),
      transfers_({readInside, writeInside, 0}) {
  abilities_.pulling = this;
  abilities_.pushing = faults_.pushes ? this : nullptr;
  abilities_.rma = this;
  abilities_.copying = this;
  abilities_.replacing = faults_.replaceable ? this : nullptr;
}

bool LoopbackConnection::chance(int percent) {
  return percent > 0 && static_cast<int>(random_() % 100) < percent;
}

int LoopbackConnection::someDelay() {
  const int most = faults_.maxDelayPolls;
  return most == 0 ? 0 : static_cast<int>(random_() % (most + 1));
}

bool LoopbackConnection::send(const MessageHeader& header, ByteSpan payload) {
  if (chance(faults_.refusePercent)) {
    return false;
  }
  Wire::Packet packet{header, Bytes(payload.begin(), payload.end())};
  packet.header.payloadSize = static_cast<uint32_t>(payload.size());
  if (faults_.replaceable) {
    if (severed(end_)) {
      return false;
    }
    log_.push_back({packet.header, packet.payload});
  }
  put(std::move(packet));
  return true;
}

bool LoopbackConnection::severed(int end) const {
  const MutexLock lock(wire_->mutex);
  return wire_->severed[end];
}

void LoopbackConnection::sever() {
  {
    const MutexLock lock(wire_->mutex);
    wire_->severed[end_] = true;
  }
  endPulls();
}

bool LoopbackConnection::drained() const {
  const MutexLock lock(wire_->mutex);
  return !wire_->severed[end_] ||
      (wire_->toEnd[end_].empty() && pulls_.empty() && transfers_.empty());
}

void LoopbackConnection::put(Wire::Packet packet) {
  const int copies = faults_.duplicate && chance(20) ? 2 : 1;
  {
    const MutexLock lock(wire_->mutex);
    if (wire_->severed[peerEnd_]) {
      return;
    }
    auto& queue = wire_->toEnd[peerEnd_];
    for (int i = 0; i < copies; ++i) {
      packet.delay = someDelay();
      queue.push_back(packet);
    }
  }
  if (wire_->wake[peerEnd_]) {
    wire_->wake[peerEnd_]();
  }
}

std::optional<RemoteBuffer> LoopbackConnection::offer(
    uint64_t id,
    MemoryView view) {
  const MutexLock lock(wire_->mutex);
  const auto slot = nextSlot_++;
  if (chance(faults_.refusePercent) ||
      !wire_->offered[end_].try_emplace(slot, Wire::Offer{id, view}).second) {
    return std::nullopt;
  }
  return RemoteBuffer{0, {}, slot};
}

void LoopbackConnection::withdraw(uint64_t id) {
  const MutexLock lock(wire_->mutex);
  std::erase_if(wire_->offered[end_], [id](const auto& entry) {
    return entry.second.id == id;
  });
}

PushAbility::Result LoopbackConnection::push(
    uint64_t id,
    RemoteBuffer target,
    MemoryView source,
    uint64_t sequence) {
  if (chance(faults_.refusePercent)) {
    return chance(50) ? Result::kNoRoom : Result::kNever;
  }
  Wire::Packet packet;
  packet.header.sequence = sequence;
  packet.header.length = source.size;
  {
    const MutexLock lock(wire_->mutex);
    if (wire_->severed[peerEnd_] || wire_->severed[end_]) {
      return Result::kNoRoom;
    }
    const auto& offers = wire_->offered[peerEnd_];
    const auto found = offers.find(target.slot);
    if (found == offers.end() || found->second.view.size < source.size) {
      misused_ = true; // a NIC would refuse, and break the connection
      pushed_.emplace_back(id, misuse());
      return Result::kPosted;
    }
    // As with a NIC, the bytes are in place long before the receiver is told.
    copyBytes(found->second.view.data, source.data, source.size);
    packet.landedId = found->second.id;
  }
  put(std::move(packet));
  pushed_.emplace_back(id, Status());
  return Result::kPosted;
}

RemoteBuffer LoopbackConnection::expose(uint64_t id, MemoryView view) {
  const MutexLock lock(wire_->mutex);
  wire_->exposed[end_][id] = view;
  return {reinterpret_cast<uint64_t>(view.data), {}, 0};
}

void LoopbackConnection::unexpose(uint64_t id) {
  const MutexLock lock(wire_->mutex);
  wire_->exposed[end_].erase(id);
}

// Returns the memory to pull from; empty if the peer does not expose all of the
// memory any more.
MemoryView LoopbackConnection::sourceOf(const Pull& pull) {
  const MutexLock lock(wire_->mutex);
  const auto& regions = wire_->exposed[peerEnd_];
  const auto found = regions.find(pull.peerId);
  if (found == regions.end()) {
    return {};
  }
  auto view = found->second;
  const auto skipped =
      pull.source - reinterpret_cast<uint64_t>(view.data); // pulled before
  if (skipped > view.size || view.size - skipped < pull.destination.size) {
    return {};
  }
  view.data += skipped;
  return view;
}

bool LoopbackConnection::pull(
    uint64_t pullId,
    uint64_t peerId,
    RemoteBuffer source,
    MemoryView destination) {
  if (faults_.framed) {
    return false;
  }
  Pull pull;
  pull.source = source.address;
  pull.id = pullId;
  pull.peerId = peerId;
  pull.destination = destination;
  pull.delay = someDelay();
  pulls_.push_back(pull);
  return true;
}

void LoopbackConnection::abandon(uint64_t pullId) {
  for (auto& pull : pulls_) {
    if (pull.id == pullId) {
      pull.stopped = givenUp();
    }
  }
}

void LoopbackConnection::start(const TransferWork& work) {
  transfers_.start(work);
  if (severed(peerEnd_)) {
    transfers_.stop(work.id);
  }
}

void LoopbackConnection::endPulls() {
  transfers_.stopAll();
  for (auto& pull : pulls_) {
    pull.stopped = givenUp();
  }
}

bool LoopbackConnection::nextPacket(Wire::Packet& packet) {
  const MutexLock lock(wire_->mutex);
  auto& queue = wire_->toEnd[end_];
  for (auto it = queue.begin(); it != queue.end(); ++it) {
    if (it->delay > 0 && !wire_->severed[end_]) {
      --it->delay;
      if (faults_.reorder) {
        continue;
      }
      return false;
    }
    packet = std::move(*it);
    queue.erase(it);
    return true;
  }
  return false;
}

bool LoopbackConnection::pollPulls(ConnectionEvents& events) {
  bool any = false;
  for (size_t i = 0; i < pulls_.size();) {
    auto& pull = pulls_[i];
    const bool finished =
        !pull.stopped.ok() || pull.claimed == pull.destination.size;
    if (!finished || pull.running != 0 || pull.delay-- > 0) {
      ++i;
      continue;
    }
    const Status status = pull.stopped;
    const auto id = pull.id;
    if (!status.ok()) {
      events.onPartlyPulled(id, pull.claimed);
    }
    pulls_.erase(pulls_.begin() + static_cast<ptrdiff_t>(i));
    events.onPulled(id, status);
    any = true;
  }
  return any;
}

bool LoopbackConnection::poll(
    ConnectionEvents& events,
    Status& broken,
    int most) {
  if (severed(end_) || severed(peerEnd_)) {
    broken = Status(ErrorCode::kTransportFailed, "severed");
    if (!severed(end_)) {
      return true; // the owner now decides how to go on
    }
  }
  bool any = pollPulls(events) || !pushed_.empty();
  any |= transfers_.report(events);
  for (const auto& [id, status] : std::exchange(pushed_, {})) {
    events.onPushed(id, status);
  }
  if (misused_) {
    broken = misuse();
    return true;
  }
  Wire::Packet packet;
  // Takes `most` packets at most: handling a packet may send another to the
  // process itself.
  for (int i = 0; i < most && nextPacket(packet); ++i) {
    any = true;
    if (faults_.breakAfter != 0 && ++delivered_ > faults_.breakAfter) {
      broken = Status(ErrorCode::kTransportFailed, "broken on purpose");
      return true;
    }
    if (packet.landedId != 0) {
      events.onLanded(
          packet.landedId,
          static_cast<uint16_t>(packet.header.sequence),
          packet.header.length);
      continue;
    }
    events.onMessage(packet.header, packet.payload);
  }
  return any;
}

bool LoopbackConnection::claimCopy(CopyJob& job) {
  if (severed(peerEnd_)) {
    return false;
  }
  for (auto& pull : pulls_) {
    const size_t left = pull.destination.size - pull.claimed;
    if (!pull.stopped.ok() || left == 0) {
      continue;
    }
    const auto exposed = sourceOf(pull);
    const auto* const source = exposed.data;
    if (source == nullptr) {
      pull.stopped = Status(
          ErrorCode::kTransportFailed, "the sender has withdrawn its memory");
      continue;
    }
    job.run =
        exposed.mayFault || pull.destination.mayFault ? readInside : copyInside;
    job.local = pull.destination.data + pull.claimed;
    job.remote = reinterpret_cast<uint64_t>(source + pull.claimed);
    // Overlapping memory can't be copied in pieces by several threads, so a
    // single job copies everything.
    const bool apart = source + left <= job.local || job.local + left <= source;
    job.size = apart ? std::min(left, kPieceBytes) : left;
    job.token = pull.id;
    pull.claimed += job.size;
    ++pull.running;
    return true;
  }
  if (transfers_.claim(job)) {
    job.token |= kTransferBit;
    return true;
  }
  return false;
}

void LoopbackConnection::finishCopy(const CopyJob& job) {
  if ((job.token & kTransferBit) != 0) {
    CopyJob own = job;
    own.token &= ~kTransferBit;
    transfers_.finish(own);
    return;
  }
  for (auto& pull : pulls_) {
    if (pull.id != job.token) {
      continue;
    }
    --pull.running;
    if (job.error != 0 && pull.stopped.ok()) {
      pull.stopped = statusOf(copyFaultOf(job.error), false);
    }
  }
}

} // namespace dlslime::loopback
