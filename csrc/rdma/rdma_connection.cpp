#include "rdma/rdma_connection.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "core/clock.h"
#include "core/log.h"

namespace dlslime::rdma {

namespace {

// Beside a full ring of records: pushes into all that was offered, a credit
// for each quarter, the initiator's greeting, and receives that are not posted
// again yet.
constexpr uint32_t kSpareReceives = 64 + OfferedMemory::kSlots;
constexpr uint32_t kReceives = kRingUnits + kSpareReceives;
constexpr uint32_t kSends = 512;
// Small messages in one store to the NIC, without a fetch of the mirror.
constexpr uint32_t kInlineBytes = 256;
// Received immediates after which receives are posted again, in one call.
constexpr uint32_t kReceiveLump = 32;
constexpr milliseconds kDrainTime{1000};
constexpr int kPollBatch = 32;

} // namespace

int RdmaConnection::mostCompletions() {
  return static_cast<int>(kSends + kReceives);
}

RdmaConnection::RdmaConnection(
    NicPtr nic,
    CompletionQueuePtr completions,
    const RdmaConfig& config)
    : nic_(std::move(nic)),
      completions_(std::move(completions)),
      memory_(nic_->domain()),
      pair_(nic_, completions_, {kSends, kReceives, kInlineBytes}, config),
      queue_(pair_, kSends),
      pulls_(queue_) {
  if (!pair_.postReceives(kReceives)) {
    throw Error(
        ErrorCode::kTransportFailed,
        "receives could not be posted on " + nic_->name());
  }
}

RdmaConnection::~RdmaConnection() {
  pair_.toError(); // before the memory goes
}

EndAddress RdmaConnection::address() const {
  return {
      pair_.address(),
      reinterpret_cast<uint64_t>(memory_.ring()),
      memory_.region().remoteKey()};
}

void RdmaConnection::connect(const EndAddress& peer, bool initiator) {
  peer_ = peer;
  pair_.connect(peer.pair);
  if (initiator) {
    peerReady_ = true;
    postCredit(kFirstPosition, RequestKind::kFlush); // the greeting
  }
}

bool RdmaConnection::verify(Bytes& /*result*/) {
  ibv_wc completion{};
  if (!greeted_ && broken_.ok() && completions_->poll(&completion, 1) > 0) {
    if (completion.status == IBV_WC_SUCCESS) {
      queue_.completed(completion.wr_id);
      greeted_ = true;
    } else {
      breakWith(describeCompletion(completion.status, completion.vendor_err));
    }
  }
  if (!broken_.ok()) {
    throw Error(ErrorCode::kUnavailable, broken_.message());
  }
  return greeted_;
}

void RdmaConnection::breakWith(const std::string& what) {
  if (broken_.ok()) {
    broken_ = Status(
        ErrorCode::kTransportFailed, "RDMA by " + nic_->name() + ": " + what);
    pair_.toError(); // so that nothing touches memory for much longer
  }
}

bool RdmaConnection::postRecord(uint32_t position, size_t bytes) {
  const size_t offset = position % kRingUnits * kRingUnit;
  ibv_sge segment{};
  segment.addr = reinterpret_cast<uint64_t>(memory_.mirror() + offset);
  segment.length = static_cast<uint32_t>(bytes);
  segment.lkey = memory_.region().localKey();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.sg_list = &segment;
  request.num_sge = 1;
  request.imm_data = htobe32(position);
  request.send_flags = bytes <= pair_.inlineBytes() ? IBV_SEND_INLINE : 0;
  request.wr.rdma.remote_addr = peer_.ring + offset;
  request.wr.rdma.rkey = peer_.ringKey;
  int error = 0;
  if (!queue_.post(request, RequestKind::kMessage, 0, error)) {
    breakWith("a write could not be posted: " + errnoText(error));
    return false;
  }
  return true;
}

bool RdmaConnection::postCredit(uint32_t position, RequestKind kind) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM; // of nothing
  request.imm_data = htobe32(position | kCreditBit);
  int error = 0;
  if (!queue_.post(request, kind, 0, error)) {
    breakWith("a credit could not be posted: " + errnoText(error));
    return false;
  }
  return true;
}

bool RdmaConnection::send(const MessageHeader& header, ByteSpan payload) {
  if (!broken_.ok() || !peerReady_ || !queue_.room()) {
    return false;
  }
  const size_t bytes = sizeof(header) + payload.size();
  const auto skipped = out_.head();
  const auto position = out_.reserve(bytes);
  if (!position) {
    return false;
  }
  if (*position != skipped) { // for unconfirmed()
    std::memset(
        memory_.mirror() + skipped % kRingUnits * kRingUnit, 0, sizeof(header));
  }
  std::byte* const record =
      memory_.mirror() + *position % kRingUnits * kRingUnit;
  MessageHeader stamped = header;
  stamped.payloadSize = static_cast<uint32_t>(payload.size());
  std::memcpy(record, &stamped, sizeof(stamped));
  copyBytes(record + sizeof(stamped), payload.data(), payload.size());
  return postRecord(*position, bytes);
}

// Of this memory; null where copying its bytes through the rings costs less.
// Throws Error.
MemoryRegionPtr RdmaConnection::regionFor(MemoryView view) const {
  auto& memory = nic_->memory();
  return view.size > RegistrationCache::kMostCopied ? memory.acquire(view)
                                                    : memory.find(view);
}

RemoteBuffer RdmaConnection::expose(uint64_t id, MemoryView view) {
  try {
    if (auto region = regionFor(view)) {
      const auto key = region->remoteKey();
      exposed_[id] = std::move(region);
      return {reinterpret_cast<uint64_t>(view.data), key};
    }
  } catch (const Error& error) {
    // No key: the peer asks for a stream.
    logWarning(
        std::string(error.what()) +
        "; the message is copied through the eager ring, which is slower");
  }
  return {};
}

void RdmaConnection::unexpose(uint64_t id) {
  exposed_.erase(id);
}

bool RdmaConnection::canPull(RemoteBuffer source, MemoryView destination)
    const {
  return source.key != 0 &&
      (destination.size > RegistrationCache::kMostCopied ||
       nic_->memory().find(destination) != nullptr);
}

void RdmaConnection::pull(
    uint64_t pullId,
    uint64_t /*peerId*/,
    RemoteBuffer source,
    MemoryView destination) {
  try {
    pulls_.start(
        pullId, source, destination, nic_->memory().acquire(destination));
  } catch (const Error& error) {
    pulls_.refuse(pullId, error.status());
    return;
  }
  const auto status = pulls_.post();
  if (!status.ok()) {
    breakWith(status.message());
  }
}

void RdmaConnection::abandon(uint64_t pullId) {
  pulls_.abandon(
      pullId, Status(ErrorCode::kCancelled, "the transfer was given up"));
}

void RdmaConnection::peerClosed() {
  // Requests that nobody answers would be tried for seconds.
  pair_.toError();
}

void RdmaConnection::sever() {
  breakWith("it was given up");
  givenUp_ = true;
  pulls_.abandonAll(Status(ErrorCode::kTransportFailed, broken_.message()));
}

// Once a queue pair is in error everything that was posted ends, the receives
// last of all: after what had come before.
bool RdmaConnection::drained() const {
  return flushed_ && pulls_.empty() && pushing_.empty();
}

// The mirror holds every record until the peer has returned credit for it.
std::vector<SentMessage> RdmaConnection::unconfirmed() const {
  std::vector<SentMessage> messages;
  for (uint32_t at = out_.tail(); at != out_.head();) {
    const auto* const record = memory_.mirror() + at % kRingUnits * kRingUnit;
    SentMessage message;
    std::memcpy(&message.header, record, sizeof(message.header));
    if (message.header.type == MessageType{}) { // up to the ring's end
      at = (at + kRingUnits - at % kRingUnits) & kPositionMask;
      continue;
    }
    const auto* const payload = record + sizeof(message.header);
    message.payload.assign(payload, payload + message.header.payloadSize);
    at = (at + unitsOf(sizeof(message.header) + message.payload.size())) &
        kPositionMask;
    messages.push_back(std::move(message));
  }
  return messages;
}

void RdmaConnection::endPulls() {
  givenUp_ = true;
  if (!offered_.empty()) {
    pair_.toError(); // so that nothing more is written there
  }
  pulls_.abandonAll(Status(ErrorCode::kCancelled, "the transfer was given up"));
}

void RdmaConnection::endBatch() {
  int error = 0;
  if (!queue_.letGo(error)) {
    breakWith("requests could not be posted: " + errnoText(error));
  }
}

bool RdmaConnection::poll(ConnectionEvents& events, Status& broken, int most) {
  std::array<ibv_wc, kPollBatch> completions{};
  bool any = false;
  try {
    for (int taken = 0; taken < most;) {
      const int count = completions_->poll(
          completions.data(), std::min(kPollBatch, most - taken));
      for (int i = 0; i < count; ++i) {
        onCompletion(completions[static_cast<size_t>(i)], events);
      }
      returnCredit();
      taken += count;
      any |= count > 0;
      if (count < kPollBatch) {
        break;
      }
    }
  } catch (const Error& error) {
    breakWith(error.what());
  }
  giveBackReceives(kReceiveLump);
  if (broken_.ok()) {
    const auto status = pulls_.post();
    if (!status.ok()) {
      breakWith(status.message());
    }
  }
  // What has failed with the connection is told of once its owner knows that it
  // is broken, and has decided what is to come of it.
  if (broken_.ok() || givenUp_) {
    any |= pulls_.report(events);
    reportFailedPushes(events);
  }
  broken = broken_;
  return any;
}

void RdmaConnection::giveBackReceives(uint32_t least) {
  if (takenReceives_ < least || !broken_.ok()) {
    return;
  }
  if (!pair_.postReceives(takenReceives_)) {
    breakWith("receives could not be posted");
    return;
  }
  takenReceives_ = 0;
}

void RdmaConnection::onCompletion(
    const ibv_wc& completion,
    ConnectionEvents& events) {
  const bool received = completion.status == IBV_WC_SUCCESS &&
      (completion.opcode & IBV_WC_RECV) != 0;
  if (received) {
    ++takenReceives_;
    onImmediate(completion, events);
    return;
  }
  if (completion.wr_id == kReceiveId) { // with an error: nothing more comes
    flushed_ = true;
    breakWith(describeCompletion(completion.status, completion.vendor_err));
    return;
  }
  const auto id = queue_.completed(completion.wr_id);
  Status status;
  if (completion.status != IBV_WC_SUCCESS) {
    breakWith(describeCompletion(completion.status, completion.vendor_err));
    status = broken_; // with the first cause
  }
  if (id.kind == RequestKind::kRead) {
    pulls_.completed(id.number, status);
  } else if (id.kind == RequestKind::kPush) {
    onPushed(id.number, status, events);
  }
}

void RdmaConnection::onImmediate(
    const ibv_wc& completion,
    ConnectionEvents& events) {
  const uint32_t immediate = be32toh(completion.imm_data);
  peerReady_ = true;
  if ((immediate & (kCreditBit | kPushBit)) == 0) {
    onRecord(immediate, events);
    return;
  }
  if ((immediate & kCreditBit) == 0) {
    onLanded(immediate, completion.byte_len, events);
    return;
  }
  if (!out_.credit(immediate & kPositionMask)) {
    breakWith(
        "the peer returned credit for what was never sent (position " +
        std::to_string(immediate & kPositionMask) + ")");
  }
}

void RdmaConnection::onRecord(uint32_t position, ConnectionEvents& events) {
  if (!broken_.ok()) {
    return;
  }
  const size_t offset = position % kRingUnits * kRingUnit;
  MessageHeader header; // a private copy: the peer can write the ring any time
  std::memcpy(&header, memory_.ring() + offset, sizeof(header));
  const size_t bytes = sizeof(header) + size_t{header.payloadSize};
  if (!in_.expects(position) || header.payloadSize > maxPayload() ||
      offset + bytes > kRingBytes) {
    breakWith(
        "the peer wrote a record of " + std::to_string(header.payloadSize) +
        " bytes at position " + std::to_string(position) +
        " of its ring, which can't be");
    return;
  }
  events.onMessage(
      header, {memory_.ring() + offset + sizeof(header), header.payloadSize});
  in_.consume(position, bytes);
}

void RdmaConnection::returnCredit() {
  if (!broken_.ok() || !queue_.room()) {
    return; // the next poll tries again
  }
  if (const auto credit = in_.takeCredit()) {
    giveBackReceives(1); // before the credit lets the peer use them
    if (broken_.ok()) {
      postCredit(*credit, RequestKind::kMessage);
    }
  }
}

void RdmaConnection::close() {
  // What was posted still goes out; its memory is ours until then.
  const auto deadline = deadlineAfter(kDrainTime);
  int error = 0;
  ibv_send_wr last{};
  last.opcode = IBV_WR_RDMA_WRITE;
  if (!broken_.ok() || !peerReady_ || !queue_.room() ||
      !queue_.post(last, RequestKind::kFlush, 0, error)) {
    return;
  }
  ibv_wc completion{};
  try {
    while (!queue_.idle() && Clock::now() < deadline) {
      if (completions_->poll(&completion, 1) == 0) {
        std::this_thread::sleep_for(microseconds(50));
      } else if (completion.status != IBV_WC_SUCCESS) {
        return;
      } else if ((completion.opcode & IBV_WC_RECV) == 0) {
        queue_.completed(completion.wr_id);
      }
    }
  } catch (const Error& broken) {
    logWarning(broken.what()); // the device is gone: nothing more goes out
  }
}

} // namespace dlslime::rdma
