#include "fakes/peers/faulty_connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transports/loopback/inside_copies.h"

namespace dlslime::testing {

namespace {

constexpr size_t kMostPayloadBytes = 64 * 1024;

constexpr uint64_t kTransferBit = 1ULL << 62; // marks a transfer's job

Status misuse() {
  return {
      ErrorCode::kTransportFailed, "a push into memory that is not offered"};
}

} // namespace

FaultyConnection::FaultyConnection(
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
      pulls_([this](uint64_t id) {
        const MutexLock lock(wire_->mutex);
        const auto& exposed = wire_->exposed[peerEnd_];
        const auto found = exposed.find(id);
        return found == exposed.end() ? MemoryView{} : found->second;
      }),
      transfers_({loopback::readInside, loopback::writeInside, 0}) {
  abilities_.pulling = this;
  abilities_.pushing = faults_.pushes ? this : nullptr;
  abilities_.rma = this;
  abilities_.copying = this;
  abilities_.replacing = faults_.replaceable ? this : nullptr;
}

bool FaultyConnection::chance(int percent) {
  return percent > 0 && static_cast<int>(random_() % 100) < percent;
}

int FaultyConnection::someDelay() {
  const int most = faults_.maxDelayPolls;
  return most == 0 ? 0 : static_cast<int>(random_() % (most + 1));
}

bool FaultyConnection::send(const MessageHeader& header, ByteSpan payload) {
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

bool FaultyConnection::severed(int end) const {
  const MutexLock lock(wire_->mutex);
  return wire_->severed[end];
}

void FaultyConnection::sever() {
  {
    const MutexLock lock(wire_->mutex);
    wire_->severed[end_] = true;
  }
  endPulls();
}

bool FaultyConnection::drained() const {
  const MutexLock lock(wire_->mutex);
  return !wire_->severed[end_] ||
      (wire_->toEnd[end_].empty() && pulls_.empty() && transfers_.empty());
}

void FaultyConnection::put(Wire::Packet packet) {
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

std::optional<RemoteBuffer> FaultyConnection::offer(
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

void FaultyConnection::withdraw(uint64_t id) {
  const MutexLock lock(wire_->mutex);
  std::erase_if(wire_->offered[end_], [id](const auto& entry) {
    return entry.second.id == id;
  });
}

PushAbility::Result FaultyConnection::push(
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

RemoteBuffer FaultyConnection::expose(uint64_t id, MemoryView view) {
  const MutexLock lock(wire_->mutex);
  wire_->exposed[end_][id] = view;
  return {reinterpret_cast<uint64_t>(view.data), {}, 0};
}

void FaultyConnection::unexpose(uint64_t id) {
  const MutexLock lock(wire_->mutex);
  wire_->exposed[end_].erase(id);
}

bool FaultyConnection::pull(
    uint64_t pullId,
    uint64_t peerId,
    RemoteBuffer source,
    MemoryView destination) {
  if (faults_.framed) {
    return false;
  }
  pulls_.add(pullId, peerId, source, destination, someDelay());
  return true;
}

void FaultyConnection::start(const TransferWork& work) {
  transfers_.start(work);
  if (severed(peerEnd_)) {
    transfers_.stop(work.id);
  }
}

void FaultyConnection::endPulls() {
  transfers_.stopAll();
  pulls_.abandonAll();
}

bool FaultyConnection::nextPacket(Wire::Packet& packet) {
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

bool FaultyConnection::poll(
    ConnectionEvents& events,
    Status& broken,
    int most) {
  if (severed(end_) || severed(peerEnd_)) {
    broken = Status(ErrorCode::kTransportFailed, "severed");
    if (!severed(end_)) {
      return true; // the owner now decides how to go on
    }
  }
  bool any = pulls_.report(events) || !pushed_.empty();
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

bool FaultyConnection::claimCopy(CopyJob& job) {
  if (severed(peerEnd_)) {
    return false;
  }
  if (pulls_.claim(job)) {
    return true;
  }
  if (transfers_.claim(job)) {
    job.token |= kTransferBit;
    return true;
  }
  return false;
}

void FaultyConnection::finishCopy(const CopyJob& job) {
  if ((job.token & kTransferBit) != 0) {
    CopyJob own = job;
    own.token &= ~kTransferBit;
    transfers_.finish(own);
    return;
  }
  pulls_.finish(job);
}

} // namespace dlslime::testing
