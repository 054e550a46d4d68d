#include "engine/channel/peer_channel.h"

#include <algorithm>
#include <new>

#include "base/log.h"
#include "engine/channel/batch.h"
#include "engine/progress/copier.h"

namespace dlslime {

namespace {
// Time for a failed device to end its work; a healthy one takes microseconds.
constexpr milliseconds kGiveUpTime{1000};
// Most looks for the peer's last messages: more than messages fit into a ring.
constexpr int kMostLastLooks = 16 * 1024;
} // namespace

void PeerChannel::use(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected,
    bool began) {
  connection_.use(std::move(connection), std::move(rejected), began);
  gpus_.connected(*connection_);
  state_ = State::kOpen;
}

void PeerChannel::connected(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected,
    bool began) {
  use(std::move(connection), std::move(rejected), began);
  parts_.emplace(
      ChannelParts::Shared{
          *connection_, gpus_, completions_, regions_, incoming_.sequencer()},
      limits_,
      peer_,
      [this](const TransferPtr& transfer)
          REQUIRES(kEngineLock) { owner_.sendNote(*transfer); });
  incoming_.connect(owner_, *parts_, gpus_);
}

void PeerChannel::resumed(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected,
    uint32_t generation,
    uint64_t peerLast,
    bool began) {
  use(std::move(connection), std::move(rejected), began);
  if (const auto status = parts_->resume(*connection_, peerLast);
      !status.ok()) {
    fail(status);
    return;
  }
  connection_.noteReplaced(generation);
  owner_.onChannelResumed(*this);
}

bool PeerChannel::sever(const Status& why) {
  return replace(why, ReplaceAbility::When::kBroken);
}

bool PeerChannel::handOver(const Status& why) {
  return replace(why, ReplaceAbility::When::kWhole);
}

bool PeerChannel::replace(const Status& why, ReplaceAbility::When least) {
  if (state_ != State::kOpen || connection_->replaceable() < least ||
      !peerClosed_.ok()) {
    return false;
  }
  state_ = State::kSevered;
  failure_ = why;
  parts_->sever();
  connection_.sever(why, least == ReplaceAbility::When::kBroken);
  return true;
}

// Gives up the old connection once drained, or after the drain time.
void PeerChannel::detachIfDrained() {
  if (!connection_.mayRetire() || copies_.any()) {
    return;
  }
  if (!peerClosed_.ok()) {
    fail(peerClosed_); // all messages of the peer are handled
    return;
  }
  parts_->detach(connection_->replacing()->unconfirmed());
  connection_.retire();
}

void PeerChannel::quieted() {
  connection_.quieted();
  parts_->in.rendezvous().quieted();
  parts_->initiator.quieted();
  if (state_ == State::kFailed) {
    if (!connection_) {
      parts_->out.releasePushed();
    }
    parts_->out.releaseFailed();
  }
}

bool PeerChannel::idle() const {
  return connection_.quiet() &&
      (!connection_ ||
       (!copies_.any() && (parts_->idle() || Clock::now() >= giveUpAt_)));
}

bool PeerChannel::working() const {
  return state_ != State::kOpen || connection_.hasRetired() ||
      !peerClosed_.ok() || copies_.any() || incoming_.sequencer().kept() > 0 ||
      parts_->working();
}

// Fails the pair, and not the process, when a peer's messages exhaust memory.
bool PeerChannel::pollSafely(int most, bool flushes) {
  try {
    return pollOnce(most, flushes);
  } catch (const std::bad_alloc&) {
    failForWantOfMemory();
    return true;
  }
}

void PeerChannel::failForWantOfMemory() {
  fail(inWords([&]() REQUIRES(kEngineLock) {
    return Status(
        ErrorCode::kExhausted,
        "this process has no memory left for " + connection_.describe());
  }));
}

bool PeerChannel::pollOnce(int most, bool flushes) {
  if (!connection_) {
    return false;
  }
  Status broken;
  bool any = false;
  {
    const Batch batch(*connection_);
    any = incoming_.handleKept();
    if (!gpus_.uploads().many()) {
      any |= connection_->poll(incoming_, broken, most);
    }
    if (broken.ok() && state_ == State::kOpen && (flushes || any)) {
      any |= parts_->flush();
    }
  }
  const bool device = connection_.ofDevice(); // ends soon: keep polling
  if (state_ == State::kSevered) {
    detachIfDrained();
    return any || !connection_ || device;
  }
  if (broken.ok()) {
    return any;
  }
  if (state_ == State::kFailed) {
    return device; // a broken connection tells the same again
  }
  if (!sever(broken)) {
    const auto lost = inWords([&]() REQUIRES(kEngineLock) {
      return Status(
          broken.code(),
          connection_.describe() + " is lost (" + broken.message() + ")");
    });
    fail(peerClosed_.ok() ? lost : peerClosed_);
  }
  return true;
}

bool PeerChannel::claimCopy(CopyJob& job) {
  job = {}; // clears the last copy
  return connection_ && state_ != State::kSevered &&
      copies_.claim(*connection_, job);
}

void PeerChannel::finishCopy(const CopyJob& job) {
  try {
    connection_->copying()->finishCopy(job);
  } catch (const std::bad_alloc&) {
    failForWantOfMemory();
  }
  if (copies_.noteFinished() && state_ == State::kFailed) {
    insist([&]() REQUIRES(kEngineLock) { parts_->out.releaseFailed(); });
  }
}

void PeerChannel::fail(const Status& why) {
  if (state_ == State::kFailed) {
    return;
  }
  state_ = State::kFailed;
  failure_ = why;
  if (connection_) {
    connection_.quieted(); // the connection reports what has ended
  }
  if (connection_ && connection_.ofDevice()) {
    giveUpAt_ = deadlineAfter(kGiveUpTime); // else closing ends the rest
  }
  if (parts_) {
    parts_->fail(why);
    gpus_.drop();
    if (!copies_.any() && connection_.quiet()) {
      insist([&]() REQUIRES(kEngineLock) { parts_->out.releaseFailed(); });
    }
  }
  insist([&]() REQUIRES(kEngineLock) { owner_.onChannelFailed(*this, why); });
}

void PeerChannel::peerClosed(const Status& why) {
  // Handles what the peer sent before the end, up to a limit: a peer that is
  // still alive may go on sending.
  int looks = 0;
  for (; state_ == State::kOpen && looks < kMostLastLooks && poll(); ++looks) {
  }
  peerClosed_ = why;
  if (looks == kMostLastLooks) {
    fail(Status(why.code(), why.message() + ", and messages still come"));
    return;
  }
  if (state_ == State::kSevered) {
    connection_ ? detachIfDrained() : fail(why);
    return;
  }
  if (connection_) {
    connection_->peerClosed();
  }
  if (!connection_ || connection_->drained()) {
    fail(why);
  } // else poll() will find the route broken
}

std::unique_ptr<Connection> PeerChannel::takeConnection() {
  // Outbound and Inbound stay, because groups may hold arrivals from them; only
  // the initiator may still use the connection, when a part of a transfer ends.
  if (parts_) {
    parts_->initiator.detach();
  }
  return connection_.take();
}

void PeerChannel::onRegistered(const RegionPtr& region, const Status& status) {
  try {
    parts_->onRegistered(region, status);
  } catch (const std::bad_alloc&) { // work may be half done
    failForWantOfMemory();
  }
}

} // namespace dlslime
