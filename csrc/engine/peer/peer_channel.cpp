#include "engine/peer/peer_channel.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/log.h"
#include "engine/peer/batch.h"
#include "engine/progress/copier.h"

namespace dlslime {

namespace {
// A healthy device ends its work in microseconds; kernel networks take longer.
constexpr milliseconds kDrainTime{1000};
constexpr milliseconds kSlowDrainTime{10000};
// Most looks for the peer's last messages: more than messages fit into a ring.
constexpr int kMostLastLooks = 16 * 1024;

// Calls `tell`, which may be repeated, up to three times for want of memory: an
// operation not told of a failure would wait for ever.
template <typename Tell>
void insist(const Tell& tell) {
  constexpr int kTries = 3;
  for (int i = 1; i <= kTries; ++i) {
    try {
      tell();
      return;
    } catch (const std::bad_alloc&) {
      if (i == kTries) {
        logWithoutMemory("telling that a connection has failed");
      }
    }
  }
}
} // namespace

void PeerChannel::use(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected,
    bool began) {
  connection_ = std::move(connection);
  connection_->useSocket(socket_);
  rejected_ = std::move(rejected);
  route_ = connection_->route();
  gpus_.connected(*connection_);
  best_.note(*connection_, began);
  state_ = State::kOpen;
}

void PeerChannel::connected(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected,
    bool began) {
  use(std::move(connection), std::move(rejected), began);
  out_.emplace(*connection_, completions_, limits_);
  in_.emplace(*connection_, *out_, gpus_, completions_, sequencer_, limits_);
  initiator_.emplace(
      *connection_,
      *out_,
      gpus_,
      completions_,
      regions_,
      peer_,
      [this](const TransferPtr& transfer) { owner_.sendNote(*transfer); });
  target_.emplace(*connection_, *out_, gpus_, regions_);
  toItself_ = route_ == "self";
}

void PeerChannel::resumed(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected,
    uint32_t generation,
    uint64_t peerLast,
    bool began) {
  use(std::move(connection), std::move(rejected), began);
  generation_ = generation;
  in_->resume(*connection_);
  const auto status = out_->resume(*connection_, peerLast);
  if (!status.ok()) {
    fail(status);
    return;
  }
  target_->resume(*connection_);
  initiator_->resume(*connection_);
  std::string reasons;
  for (const auto& entry : rejected_) {
    reasons += "; not over " + entry.route + ": " + entry.reason;
  }
  sayReplaced(
      "connected to pid " + std::to_string(peer_.pid) + " on " + peer_.host +
      " again, over " + route_ + " " + connection_->info().devices +
      ": lost messages are sent again" + reasons);
  owner_.onChannelResumed(*this);
}

bool PeerChannel::couldBeBetter() const {
  const auto tried = [](const auto& entry) { return entry.tried; };
  return state_ == State::kOpen &&
      (best_.beats(*connection_) ||
       std::any_of(rejected_.begin(), rejected_.end(), tried));
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
  ++replacements_;
  const bool broken = least == ReplaceAbility::When::kBroken;
  sayReplaced(
      connectionText() + (broken ? " is lost (" : " is given up (") +
      why.message() + "): the engine is connecting again");
  state_ = State::kSevered;
  failure_ = why;
  leftWhole_ = !broken;
  quiet_ = false;
  const bool device =
      connection_->replaceable() == ReplaceAbility::When::kBroken;
  detachAt_ = deadlineAfter(device ? kDrainTime : kSlowDrainTime);
  out_->sever();
  in_->sever();
  initiator_->sever();
  connection_->replacing()->sever();
  return true;
}

// Logs ever fewer warnings, since a peer may ask for connections without end.
void PeerChannel::sayReplaced(const std::string& what) const {
  if (!std::has_single_bit(replacements_)) {
    logInfo(what);
    return;
  }
  logWarning(
      replacements_ == 1 ? what
                         : what + " (the " + std::to_string(replacements_) +
              "th time; only the 1st, 2nd, 4th, 8th, ... are warnings)");
}

// Gives up the old connection once drained, or after the drain time.
void PeerChannel::detachIfDrained() {
  const bool over = connection_->drained() || Clock::now() >= detachAt_;
  if (!over || copies_ > 0) {
    return;
  }
  if (!peerClosed_.ok()) {
    fail(peerClosed_); // all messages of the peer are handled
    return;
  }
  copyName_ = info().copyName;
  out_->keepUnconfirmed(connection_->replacing()->unconfirmed());
  in_->detach();
  initiator_->detach();
  target_->detach();
  severed_ = std::move(connection_);
}

void PeerChannel::quieted() {
  quiet_ = true;
  in_->rendezvous().quieted();
  initiator_->quieted();
  if (state_ == State::kFailed) {
    if (!connection_) {
      out_->releasePushed();
    }
    out_->releaseFailed();
  }
}

bool PeerChannel::idle() const {
  if (!quiet_ || !connection_) {
    return quiet_;
  }
  const bool ended = out_->idle() && in_->idle() && initiator_->idle();
  return copies_ == 0 && (ended || Clock::now() >= giveUpAt_);
}

bool PeerChannel::working() const {
  return state_ != State::kOpen || severed_ != nullptr || !peerClosed_.ok() ||
      copies_ > 0 || sequencer_.kept() > 0 || !out_->handedOver() ||
      !out_->idle() || !in_->idle() || !initiator_->idle() || !target_->idle();
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
  fail(inWords([&] {
    return Status(
        ErrorCode::kExhausted,
        "this process has no memory left for " + connectionText());
  }));
}

std::string PeerChannel::connectionText() const {
  return "the connection to pid " + std::to_string(peer_.pid) + " on " +
      peer_.host + " over " + route_;
}

// Sends queued messages first. The three parts take turns to be next, because
// each may use up all room of the connection.
bool PeerChannel::flush() {
  constexpr int kHalves = 3;
  const bool queued = out_->flushQueued();
  bool any = false;
  const int first = firstToFlush_;
  for (int i = 0; i < kHalves; ++i) {
    const int which = (first + i) % kHalves;
    const bool sent = which == 0 ? out_->flushStreams()
        : which == 1             ? initiator_->flush()
                                 : target_->flush();
    if (sent && !any) {
      firstToFlush_ = (which + 1) % kHalves;
    }
    any |= sent;
  }
  return any || queued;
}

bool PeerChannel::pollOnce(int most, bool flushes) {
  if (!connection_) {
    return false;
  }
  Status broken;
  bool any = false;
  {
    const Batch batch(*connection_);
    any = handleKept();
    if (!gpus_.uploads().many()) {
      any |= connection_->poll(*this, broken, most);
    }
    if (broken.ok() && state_ == State::kOpen && (flushes || any)) {
      any |= flush();
    }
  }
  // A device ends in microseconds, perhaps without telling: keep polling.
  const bool device =
      connection_->replaceable() == ReplaceAbility::When::kBroken;
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
    const auto lost = inWords([&] {
      return Status(
          broken.code(),
          connectionText() + " is lost (" + broken.message() + ")");
    });
    fail(peerClosed_.ok() ? lost : peerClosed_);
  }
  return true;
}

bool PeerChannel::claimCopy(CopyJob& job) {
  job = {}; // clears the last copy
  if (!connection_ || state_ == State::kSevered ||
      connection_->copying() == nullptr ||
      !connection_->copying()->claimCopy(job)) {
    return false;
  }
  ++copies_;
  return true;
}

void PeerChannel::noteGiven() {
  if (given_++ == 0) {
    givenAt_ = Clock::now();
  }
}

bool PeerChannel::copyOverdue() const {
  return given_ > 0 && Clock::now() - givenAt_ > Copier::kPatience;
}

void PeerChannel::finishCopy(const CopyJob& job) {
  try {
    connection_->copying()->finishCopy(job);
  } catch (const std::bad_alloc&) {
    failForWantOfMemory();
  }
  if (--copies_ == 0 && state_ == State::kFailed) {
    insist([&] { out_->releaseFailed(); });
  }
}

void PeerChannel::fail(const Status& why) {
  if (state_ == State::kFailed) {
    return;
  }
  state_ = State::kFailed;
  failure_ = why;
  quiet_ |= connection_ != nullptr; // the connection reports what has ended
  if (connection_ &&
      connection_->replaceable() == ReplaceAbility::When::kBroken) {
    giveUpAt_ = deadlineAfter(kDrainTime); // else closing ends the rest
  }
  if (out_) {
    insist([&] { out_->fail(why); });
    insist([&] { in_->fail(why); });
    insist([&] { initiator_->fail(why); });
    target_->fail();
    gpus_.drop();
    if (copies_ == 0 && quiet_) {
      insist([&] { out_->releaseFailed(); });
    }
  }
  insist([&] { owner_.onChannelFailed(*this, why); });
}

void PeerChannel::peerClosed(const Status& why) {
  // Handles what the peer sent before the end, up to a limit: a peer that is
  // still alive may go on sending.
  int looks = 0;
  while (state_ == State::kOpen && looks < kMostLastLooks && poll()) {
    ++looks;
  }
  peerClosed_ = why;
  if (looks == kMostLastLooks) {
    fail(
        Status(why.code(), why.message() + ", and messages come all the same"));
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
  copyName_ = info().copyName;
  // Outbound and Inbound stay, because groups may hold arrivals from them; only
  // the initiator may still use the connection, when a part of a transfer ends.
  if (initiator_) {
    initiator_->detach();
  }
  return std::move(connection_);
}

} // namespace dlslime
