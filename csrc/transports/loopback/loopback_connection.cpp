#include "transports/loopback/loopback_connection.h"

#include <utility>

#include "transports/loopback/inside_copies.h"

namespace dlslime::loopback {

namespace {
constexpr size_t kMostPayloadBytes = 64 * 1024;
constexpr uint64_t kTransferBit = 1ULL << 62; // marks a transfer's job
} // namespace

LoopbackConnection::LoopbackConnection()
    : Connection({"self", kMostPayloadBytes}),
      pulls_([this](uint64_t id) {
        const auto found = exposed_.find(id);
        return found == exposed_.end() ? MemoryView{} : found->second;
      }),
      transfers_({readInside, writeInside, 0}) {
  abilities_.pulling = this;
  abilities_.rma = this;
  abilities_.copying = this;
}

bool LoopbackConnection::send(const MessageHeader& header, ByteSpan payload) {
  Packet packet{header, Bytes(payload.begin(), payload.end())};
  packet.header.payloadSize = static_cast<uint32_t>(payload.size());
  packets_.push_back(std::move(packet));
  return true;
}

RemoteBuffer LoopbackConnection::expose(uint64_t id, MemoryView view) {
  exposed_[id] = view;
  return {reinterpret_cast<uint64_t>(view.data), {}, 0};
}

bool LoopbackConnection::pull(
    uint64_t pullId,
    uint64_t peerId,
    RemoteBuffer source,
    MemoryView destination) {
  pulls_.add(pullId, peerId, source, destination);
  return true;
}

void LoopbackConnection::endPulls() {
  transfers_.stopAll();
  pulls_.abandonAll();
}

bool LoopbackConnection::poll(
    ConnectionEvents& events,
    Status& /*broken*/,
    int most) {
  bool any = pulls_.report(events);
  any |= transfers_.report(events);
  // Takes `most` packets at most: handling a packet may send another.
  for (int i = 0; i < most && !packets_.empty(); ++i) {
    const auto packet = std::move(packets_.front());
    packets_.pop_front();
    events.onMessage(packet.header, packet.payload);
    any = true;
  }
  return any;
}

bool LoopbackConnection::claimCopy(CopyJob& job) {
  if (pulls_.claim(job)) {
    return true;
  }
  if (!transfers_.claim(job)) {
    return false;
  }
  job.token |= kTransferBit;
  return true;
}

void LoopbackConnection::finishCopy(const CopyJob& job) {
  if ((job.token & kTransferBit) == 0) {
    pulls_.finish(job);
    return;
  }
  CopyJob own = job;
  own.token &= ~kTransferBit;
  transfers_.finish(own);
}

} // namespace dlslime::loopback
