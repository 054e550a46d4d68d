#include "transports/rdma/rdma_connection.h"

#include <algorithm>

#include "base/log.h"
#include "transports/rdma/rail/rail_problems.h"

namespace dlslime::rdma {

namespace {
// Number of received immediates after which receives are posted again, in a
// single call.
constexpr uint32_t kReceiveLump = 32;
} // namespace

RdmaConnection::RdmaConnection(
    std::unique_ptr<RingMemory> memory,
    Rails rails,
    FindRegistrar findRegistrar)
    : Connection({"rdma", EagerMessages::kMostPayload, false, true}),
      memory_(std::move(memory)),
      rails_(
          std::move(rails),
          [this](const Rail& rail, SendQueue::Refused refused) {
            onRefused(rail, refused);
          }),
      requests_(rails_, regions_, bulk_),
      messages_(rails_, *memory_),
      pushes_(rails_, regions_),
      greetings_(rails_, [this](uint32_t numbers) { keepRails(numbers); }),
      findRegistrar_(std::move(findRegistrar)) {
  abilities_.pulling = &requests_;
  abilities_.pushing = &pushes_;
  abilities_.rma = &requests_;
  abilities_.batching = &rails_;
  abilities_.verifying = &greetings_;
  abilities_.replacing = this;
}

RdmaConnection::~RdmaConnection() {
  rails_.toError(); // before any memory of theirs is freed
}

EndAddress RdmaConnection::address() const {
  EndAddress address;
  address.ring = reinterpret_cast<uint64_t>(memory_->ring());
  for (const auto& rail : rails_.all()) {
    address.rails.push_back(
        {rail->number,
         rail->nicNumber,
         rail->pair.address(),
         rail->ring.remoteKey()});
  }
  return address;
}

void RdmaConnection::keepRails(uint32_t numbers) {
  rails_.keep(numbers);
  regions_.use(rails_.all());
  bulk_.use(rails_.all());
  abilities_.registrar = findRegistrar_(rails_.nics());
}

void RdmaConnection::connect(const EndAddress& peer, bool initiator) {
  uint32_t common = 0;
  RailProblems problems;
  for (const auto& end : peer.rails) {
    for (const auto& rail : rails_.all()) {
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
  if (initiator) {
    rails_.peerIsReady();
    greetings_.post();
  }
}

ConnectionInfo RdmaConnection::info() const {
  ConnectionInfo info("read");
  rails_.describe(info);
  info.memory = {0, 2 * kRingBytes}; // NICs may access both rings at any time
  return info;
}

void RdmaConnection::onRefused(const Rail& rail, SendQueue::Refused refused) {
  bulk_.refused(rail, refused.bulk, rails_.broken());
  pushes_.lose(refused.push);
}

int RdmaConnection::pollRail(Rail& rail, ConnectionEvents& events, int most) {
  int taken = 0;
  while (taken < most) {
    const int count = rail.completions->poll(
        polled_.data(), std::min(kPollBatch, most - taken));
    for (int i = 0; i < count; ++i) {
      onCompletion(rail, polled_[static_cast<size_t>(i)], events);
    }
    messages_.returnCredit();
    taken += count;
    if (count < kPollBatch) {
      break;
    }
  }
  messages_.giveBackReceives(rail, kReceiveLump);
  return taken;
}

bool RdmaConnection::poll(ConnectionEvents& events, Status& broken, int most) {
  bool any = false;
  for (const auto& rail : rails_.all()) {
    try {
      any |= pollRail(*rail, events, most) > 0;
      if (rail->lost()) {
        rails_.breakWith(*rail, rail->nic->whyLost());
      }
    } catch (const Error& error) {
      rails_.breakWith(*rail, error.what());
    }
  }
  if (rails_.whole()) {
    requests_.post();
  }
  // Failures caused by a broken connection are reported only after the owner
  // has learned of the break and decided what happens next.
  if (rails_.whole() || givenUp_) {
    any |= bulk_.report(events);
    pushes_.reportFailed(events);
  }
  broken = rails_.broken();
  return any;
}

void RdmaConnection::onCompletion(
    Rail& rail,
    const ibv_wc& completion,
    ConnectionEvents& events) {
  const bool received = completion.status == IBV_WC_SUCCESS &&
      (completion.opcode & IBV_WC_RECV) != 0;
  if (received) {
    ++rail.takenReceives;
    onImmediate(completion, events);
    return;
  }
  if (completion.status != IBV_WC_SUCCESS) {
    rails_.breakWith(
        rail, describeCompletion(completion.status, completion.vendor_err));
  }
  if (completion.wr_id == kReceiveId) { // a flushed receive: no message follows
    flushed_ |= &rail == &rails_.first();
    return;
  }
  const auto id = rail.queue.completed(completion.wr_id);
  const auto status = completion.status == IBV_WC_SUCCESS
      ? Status()
      : rails_.broken(); // the first cause
  if (id.kind == RequestKind::kBulk) {
    bulk_.completed(rail, status);
  } else if (id.kind == RequestKind::kPush) {
    pushes_.onCompleted(id.number, status, events);
  } else if (id.kind == RequestKind::kFlush) {
    flushAsked_ = false;
  }
}

void RdmaConnection::onImmediate(
    const ibv_wc& completion,
    ConnectionEvents& events) {
  const uint32_t immediate = be32toh(completion.imm_data);
  rails_.peerIsReady();
  if ((immediate & kCreditBit) != 0) {
    messages_.onCredit(immediate & kPositionMask);
  } else if ((immediate & kPushBit) != 0) {
    pushes_.onLanded(immediate, completion.byte_len, events);
  } else {
    messages_.onRecord(immediate, events);
  }
}

void RdmaConnection::peerClosed() {
  rails_.toError(); // the NICs would retry requests to the closed peer
}

void RdmaConnection::sever() {
  rails_.breakWith(rails_.first(), "the connection was given up");
  givenUp_ = true;
  bulk_.abandonAll(
      Status(ErrorCode::kTransportFailed, rails_.broken().message()));
}

// Returns whether every posted request has ended. A queue pair in error
// completes its receives last, after the messages that came before the error.
bool RdmaConnection::drained() const {
  return flushed_ && bulk_.empty() && pushes_.empty();
}

void RdmaConnection::endPulls() {
  givenUp_ = true;
  if (pushes_.offersMemory() || requests_.reached()) {
    peerClosed(); // stops the peer's writes into our memory
  }
  bulk_.abandonAll(Status(ErrorCode::kCancelled, "the transfer was given up"));
}

// Posts a request behind all others, so that its completion covers all.
bool RdmaConnection::postFlush() {
  int error = 0;
  ibv_send_wr last{};
  last.opcode = IBV_WR_RDMA_WRITE;
  return rails_.mayPost() &&
      rails_.first().queue.post(last, RequestKind::kFlush, 0, error);
}

bool RdmaConnection::allSent() {
  if (!rails_.whole() || !rails_.peerReady() || rails_.first().queue.idle()) {
    flushAsked_ = false;
    return true;
  }
  flushAsked_ = flushAsked_ || postFlush();
  return false;
}

// Lets posted requests go out first, because the NIC reads the connection's
// memory until then. Returns false until all are out.
bool RdmaConnection::close(bool atOnce) {
  auto& rail = rails_.first();
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
