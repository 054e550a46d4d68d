#include "transports/rdma/rdma_connection.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "transports/rdma/rail_problems.h"

namespace dlslime::rdma {

namespace {

// Time granted to the remaining rails after the first greeting has passed. A
// lost packet costs 0.54 s by default.
constexpr milliseconds kOtherRailsTime{1500};

} // namespace

RdmaConnection::RdmaConnection(
    std::unique_ptr<RingMemory> memory,
    Rails rails,
    FindRegistrar findRegistrar)
    : Connection(
          {"rdma", kMostRecordBytes - sizeof(MessageHeader), false, true}),
      memory_(std::move(memory)),
      rails_(std::move(rails)),
      findRegistrar_(std::move(findRegistrar)) {
  abilities_.pulling = this;
  abilities_.pushing = this;
  abilities_.rma = this;
  abilities_.batching = this;
  abilities_.verifying = this;
  abilities_.replacing = this;
}

RdmaConnection::~RdmaConnection() {
  for (const auto& rail : rails_) {
    rail->pair.toError(); // before memory_ is freed
  }
}

EndAddress RdmaConnection::address() const {
  EndAddress address;
  address.ring = reinterpret_cast<uint64_t>(memory_->ring());
  for (const auto& rail : rails_) {
    address.rails.push_back(
        {rail->number,
         rail->nicNumber,
         rail->pair.address(),
         rail->ring.remoteKey()});
  }
  return address;
}

void RdmaConnection::keepRails(uint32_t numbers) {
  std::erase_if(rails_, [numbers](const auto& rail) {
    return (numbers >> rail->number & 1) == 0;
  });
  if (rails_.empty()) {
    throw Error(
        ErrorCode::kUnavailable, "the peer takes none of our queue pairs");
  }
  regions_.use(rails_);
  bulk_.use(rails_);
  abilities_.registrar = findRegistrar_(nics());
}

std::vector<NicPtr> RdmaConnection::nics() const {
  std::vector<NicPtr> nics;
  for (const auto& rail : rails_) {
    if (std::find(nics.begin(), nics.end(), rail->nic) == nics.end()) {
      nics.push_back(rail->nic);
    }
  }
  return nics;
}

void RdmaConnection::connect(const EndAddress& peer, bool initiator) {
  uint32_t common = 0;
  RailProblems problems;
  for (const auto& end : peer.rails) {
    for (auto& rail : rails_) {
      if (rail->number != end.number) {
        continue;
      }
      rail->peerNicNumber = end.nicNumber;
      rail->peerRing = peer.ring;
      rail->peerRingKey = end.ringKey;
      if (problems.none([&] { rail->pair.connect(end.pair); })) {
        common |= 1U << rail->number;
      }
    }
  }
  problems.settle(common != 0);
  keepRails(common);
  peerReady_ = initiator;
  for (auto& rail : rails_) {
    if (initiator) {
      postGreeting(*rail);
    }
  }
}

bool RdmaConnection::verify(Bytes& result) {
  uint32_t good = 0;
  bool waiting = false;
  std::string problems;
  for (auto& rail : rails_) {
    ibv_wc completion{};
    if (!rail->greeted && rail->problem.empty() &&
        rail->completions->poll(&completion, 1) > 0) {
      rail->queue.completed(completion.wr_id);
      rail->greeted = completion.status == IBV_WC_SUCCESS;
      rail->problem = rail->greeted
          ? ""
          : describeCompletion(completion.status, completion.vendor_err);
    }
    good |= rail->greeted ? 1U << rail->number : 0;
    waiting |= !rail->greeted && rail->problem.empty();
    problems += rail->problem.empty() ? ""
                                      : (problems.empty() ? "" : "; ") +
            rail->nic->name() + ": " + rail->problem;
  }
  if (good == 0 && !waiting) {
    throw Error(
        ErrorCode::kUnavailable,
        "the connection is made, but no message passes (" + problems + ")");
  }
  if (good != 0 && waiting) {
    verifyBy_ = std::min(verifyBy_, deadlineAfter(kOtherRailsTime));
  }
  if (good == 0 || (waiting && Clock::now() < verifyBy_)) {
    return false;
  }
  keepRails(good);
  ByteWriter writer;
  writer.number(good);
  result = writer.take();
  return true;
}

void RdmaConnection::confirm(ByteSpan result) {
  ByteReader reader(result);
  const auto good = reader.number<uint32_t>();
  if (!reader.atEnd()) {
    throw Error(ErrorCode::kPeerFailed, "the confirmation is malformed");
  }
  keepRails(good);
}

ConnectionInfo RdmaConnection::info() const {
  ConnectionInfo info("read");
  for (const auto& rail : rails_) {
    info.devices += (info.devices.empty() ? "" : ", ") + rail->nic->name();
  }
  // Ranks the number of NICs above the number of queue pairs.
  info.lanes = nics().size() * (EndAddress::kMostRails + 1) + rails_.size();
  info.merit = meritOf(info.lanes);
  info.memory = {0, 2 * kRingBytes}; // NICs may access both rings at any time
  return info;
}

// Ranks the distance of the nearest NIC above the lanes.
size_t RdmaConnection::meritOf(size_t lanes) const {
  constexpr size_t kMostLanes =
      (RemoteBuffer::kMostKeys + 1) * (EndAddress::kMostRails + 1);
  auto nearest = kFarthest;
  for (const auto& rail : rails_) {
    nearest = std::min(nearest, rail->nic->distance());
  }
  const auto steps =
      static_cast<size_t>(kFarthest) - static_cast<size_t>(nearest);
  return steps * kMostLanes + lanes;
}

void RdmaConnection::breakWith(const Rail& rail, const std::string& what) {
  if (broken_.ok()) {
    broken_ = Status(
        ErrorCode::kTransportFailed,
        "RDMA by " + rail.nic->name() + ": " + what);
    for (const auto& other : rails_) {
      other->pair.toError(); // so that NICs soon stop accessing memory
    }
  }
  for (const auto& other : rails_) {
    const auto refused = other->queue.takeRefused();
    bulk_.refused(*other, refused.bulk, broken_);
    losePushes(refused.push);
  }
}

// Returns no registrations if registering fails; the message is then streamed,
// as a small message is.
RailMemory::Regions RdmaConnection::registered(MemoryView view) const {
  try {
    return regions_.worthwhile(view);
  } catch (const Error& error) {
    if (first().nic->said().isNew(error.what())) {
      logWarning(
          std::string(error.what()) +
          "; messages from and to such memory are copied through the eager "
          "ring, which is slower");
    }
  }
  return {};
}

RemoteBuffer RdmaConnection::expose(uint64_t id, MemoryView view) {
  auto regions = registered(view);
  const auto remote = RailMemory::remote(regions, view);
  exposed_[id] = std::move(regions);
  return remote;
}

void RdmaConnection::unexpose(uint64_t id) {
  exposed_.erase(id);
}

bool RdmaConnection::pull(
    uint64_t pullId,
    uint64_t /*peerId*/,
    RemoteBuffer source,
    MemoryView destination) {
  if (source.keys[first().peerNicNumber] == 0) {
    return false;
  }
  auto regions = registered(destination);
  if (regions_.first(regions) == nullptr) {
    return false;
  }
  bulk_.startPull(pullId, source, destination, std::move(regions));
  postBulk();
  return true;
}

RemoteBuffer RdmaConnection::reach(
    MemoryView view,
    const Registration* registration) {
  if (registration == nullptr) {
    return {}; // no key: transfers go in messages
  }
  reached_ = true;
  const auto& memory = *static_cast<const RegisteredRegion*>(registration);
  return RailMemory::remote(regions_.of(memory), view);
}

bool RdmaConnection::direct(
    const RemoteBuffer& there,
    const Registration* registration) const {
  const auto* const memory = static_cast<const RegisteredRegion*>(registration);
  return std::any_of(rails_.begin(), rails_.end(), [&](const auto& rail) {
    return there.keys[rail->peerNicNumber] != 0 &&
        (memory == nullptr || memory->regions.contains(rail->nic.get()));
  });
}

void RdmaConnection::start(const TransferWork& work) {
  const auto& memory = *static_cast<const RegisteredRegion*>(work.registration);
  bulk_.startTransfer(work, regions_.of(memory));
  beginBatch();
  postBulk();
  endBatch();
}

void RdmaConnection::stop(uint64_t transferId) {
  bulk_.abandon(
      Bulk::Kind::kTransfer,
      transferId,
      Status(ErrorCode::kCancelled, "the transfer was given up"));
}

void RdmaConnection::postBulk() {
  if (!broken_.ok()) {
    return;
  }
  std::string why;
  if (const auto* const rail = bulk_.post(why)) {
    breakWith(*rail, why);
  }
}

void RdmaConnection::abandon(uint64_t pullId) {
  bulk_.abandon(
      Bulk::Kind::kPull,
      pullId,
      Status(ErrorCode::kCancelled, "the transfer was given up"));
}

void RdmaConnection::peerClosed() {
  // The NICs would retry requests to the closed peer for seconds.
  for (const auto& rail : rails_) {
    rail->pair.toError();
  }
}

void RdmaConnection::sever() {
  breakWith(first(), "the connection was given up");
  givenUp_ = true;
  bulk_.abandonAll(Status(ErrorCode::kTransportFailed, broken_.message()));
}

// Returns whether every posted request has ended. A queue pair in error
// completes its receives last, after the messages that came before the error.
bool RdmaConnection::drained() const {
  return flushed_ && bulk_.empty() && pushing_.empty();
}

// The mirror holds every record until the peer has returned credit for the
// record.
std::vector<SentMessage> RdmaConnection::unconfirmed() const {
  std::vector<SentMessage> messages;
  for (uint32_t at = out_.tail(); at != out_.head();) {
    const auto* const record = memory_->mirror() + at % kRingUnits * kRingUnit;
    SentMessage message;
    std::memcpy(&message.header, record, sizeof(message.header));
    if (message.header.type == MessageType{}) { // skipped to the ring's end
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
  if (!offered_.empty() || reached_) {
    peerClosed(); // stops the peer's writes into our memory
  }
  bulk_.abandonAll(Status(ErrorCode::kCancelled, "the transfer was given up"));
}

// Posts a request behind all others, so that its completion covers all.
bool RdmaConnection::postFlush() {
  auto& queue = first().queue;
  int error = 0;
  ibv_send_wr last{};
  last.opcode = IBV_WR_RDMA_WRITE;
  return broken_.ok() && peerReady_ && queue.room() &&
      queue.post(last, RequestKind::kFlush, 0, error);
}

bool RdmaConnection::allSent() {
  const auto& queue = first().queue;
  if (!broken_.ok() || !peerReady_ || queue.idle()) {
    flushAsked_ = false;
    return true;
  }
  flushAsked_ = flushAsked_ || postFlush();
  return false;
}

// Lets posted requests go out first, because the NIC reads the connection's
// memory until then. Returns false until all are out.
bool RdmaConnection::close(bool atOnce) {
  auto& rail = first();
  if (atOnce || (!closing_ && !postFlush())) {
    return true;
  }
  closing_ = true;
  ibv_wc completion{};
  try {
    while (!rail.queue.idle()) {
      if (rail.completions->poll(&completion, 1) == 0) {
        return false;
      }
      if (completion.status != IBV_WC_SUCCESS) {
        return true;
      }
      if ((completion.opcode & IBV_WC_RECV) == 0) {
        rail.queue.completed(completion.wr_id);
      }
    }
  } catch (const Error& broken) {
    logWarning(broken.what()); // the device is gone: nothing goes out
  }
  return true;
}

} // namespace dlslime::rdma
