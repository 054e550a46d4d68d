#include "engine/connect/incoming_handshakes.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/connect/replacement.h"
#include "engine/state/engine_lock.h"

// The functions stand in the order in which a handshake runs through them.

namespace dlslime {

namespace {
// Reading takes microseconds, but longer over Gloo, or when a malicious peer
// withholds the end: after this time the peer has to ask again.
constexpr milliseconds kLongestReading{20};
constexpr milliseconds kReadPause{1};

ChannelKey keyOf(const Incoming& incoming) {
  return {incoming.greeting.self, incoming.greeting.policy};
}

Welcome refusal(const std::string& why) {
  return {Verdict::kRefused, "the peer says: " + why, {}};
}

void refuse(Incoming& incoming, const Welcome& refusal) {
  try {
    incoming.answer(encode(refusal));
  } catch (const Error& error) {
    // The peer has given up already, most often because this process has
    // connected to the peer.
    logDebug(std::string("an answer was not wanted: ") + error.what());
  }
}

// Returns the group that needs the connection: for a replacement, any group
// using the replaced connection. Null proves little, since the peer may have
// read the address record of an earlier incarnation.
std::shared_ptr<Group>
groupOf(EngineState& state, const ChannelKey& key, const Hello& hello) {
  const EngineLock lock(state);
  if (auto group = state.groupRegistry.find(hello.group)) {
    return group;
  }
  const auto replaced =
      hello.replaces == 0 ? nullptr : state.channels.find(key);
  int rank = 0;
  return replaced ? state.groupUsing(*replaced, rank) : nullptr;
}

// Accepts the hello.
void sendWelcome(
    EngineState& state,
    Incoming& incoming,
    const ChannelKey& key,
    Offer reply) {
  uint64_t lastSeen = 0;
  {
    const EngineLock lock(state);
    const auto channel = state.channels.find(key);
    lastSeen = channel ? channel->lastSeen() : 0;
  }
  const Welcome welcome{
      Verdict::kAccepted,
      "",
      std::move(reply.blob),
      lastSeen,
      static_cast<uint8_t>(reply.fds.size()),
      state.config.unexpectedLimitBytes};
  incoming.answer(encode(welcome));
  if (!reply.fds.empty()) {
    incoming.socket.sendDescriptors(reply.fds);
  }
}
} // namespace

IncomingHandshakes::IncomingHandshakes(
    EngineState& state,
    Acceptor& acceptor,
    std::vector<Dialer*> dialers,
    HandshakeResults& results)
    : state_(state),
      acceptor_(acceptor),
      dialers_(std::move(dialers)),
      results_(results) {}

IncomingHandshakes::~IncomingHandshakes() {
  sideSockets_->close();
}

void IncomingHandshakes::begin(Incoming incoming) {
  try {
    if (incoming.hello.route == kSideRoute) {
      bringSideSocket(incoming);
      return;
    }
    requireRoomToBegin(incoming);
  } catch (const Error& error) {
    if (error.status().code() == ErrorCode::kExhausted) {
      refuse(
          incoming,
          {Verdict::kLater, std::string("the peer says: ") + error.what(), {}});
    } else {
      acceptor_.sayRefused(incoming.socket, error.what());
    }
    return;
  }
  onHello(std::move(incoming), deadlineAfter(kLongestReading));
}

// Delivers the side socket of a connection accepted by this end.
void IncomingHandshakes::bringSideSocket(Incoming& incoming) {
  if (!sideSockets_->bring(incoming.hello.nonce, incoming.socket.release())) {
    throw Error(
        ErrorCode::kPeerFailed, "the peer's second socket is not expected");
  }
}

// Throws Error if no further handshake may begin: the handshakes of an origin
// must leave room for all remaining origins.
void IncomingHandshakes::requireRoomToBegin(const Incoming& incoming) const {
  const auto origin = incoming.socket.peerOrigin();
  const auto isOfOrigin = [&origin](const auto& handshake) {
    return handshake.incoming.socket.peerOrigin() == origin;
  };
  const auto ofOrigin =
      std::count_if(answered_.begin(), answered_.end(), isOfOrigin) +
      std::count_if(kept_.begin(), kept_.end(), isOfOrigin);
  limits_.requireRoomToBegin(
      answered_.size() + kept_.size(), static_cast<size_t>(ofOrigin));
}

void IncomingHandshakes::onHello(Incoming incoming, TimePoint keepUntil) {
  try {
    auto given = answer(incoming);
    if (auto* const made = std::get_if<MadeConnection>(&given)) {
      answered_.push_back(
          {std::move(incoming),
           std::move(*made),
           deadlineAfter(HandshakeLimits::kHandshakeTime)});
    } else if (const auto* const refused = std::get_if<Welcome>(&given)) {
      refuse(incoming, *refused);
    } else if (Clock::now() < keepUntil) {
      kept_.push_back({std::move(incoming), keepUntil});
    } else {
      refuse(
          incoming,
          {Verdict::kRefused,
           "the old connection is not yet read to the end",
           {}});
    }
  } catch (const std::exception& error) {
    const auto status = statusOf(error);
    if (status.code() == ErrorCode::kExhausted) { // the peer tries again
      refuse(
          incoming,
          {Verdict::kLater, "the peer says: " + status.message(), {}});
    } else {
      acceptor_.sayRefused(incoming.socket, status.message());
    }
  }
}

IncomingHandshakes::Answer IncomingHandshakes::answer(Incoming& incoming) {
  const auto& hello = incoming.hello;
  const auto key = keyOf(incoming);
  if (!hello.probe) {
    if (ownGoesOn(key)) {
      return Welcome{Verdict::kCrossed, "", {}};
    }
    auto replacement = decideReplacement(state_, key, hello);
    if (replacement.step == Replacement::Step::kReadOn) {
      return NotReadToTheEnd{};
    }
    if (replacement.step == Replacement::Step::kRefuse) {
      return std::move(replacement.refusal);
    }
    if (hello.replaces == 0) {
      requireRoomToStay(incoming);
    }
  }
  auto* const transport = state_.transports.find(hello.route);
  if (transport == nullptr) {
    return refusal(state_.transports.whyNot(hello.route));
  }
  const auto reachable = transport->reaches(state_.self, hello.self);
  if (!reachable.ok()) {
    return refusal(reachable.message());
  }
  return connect(incoming, *transport);
}

// Returns whether this end's own attempt beats the peer's. When both ends
// connect at once, the attempt of the end with the smaller instance number goes
// on, so exactly one connection is made. An own attempt counts only once
// connected, as the peer's already is.
bool IncomingHandshakes::ownGoesOn(const ChannelKey& key) const {
  return dialers_.front()->hasConnected(key) &&
      state_.self.instance < key.instance;
}

void IncomingHandshakes::requireRoomToStay(const Incoming& incoming) const {
  const auto& socket = incoming.socket;
  const bool one = socket.local() && socket.credentials().pid != 0;
  const EngineLock lock(state_);
  const auto open = state_.channels.countOf(socket.peerOrigin());
  limits_.requireRoomToStay(socket.peerOrigin(), open, one);
}

IncomingHandshakes::Answer IncomingHandshakes::connect(
    Incoming& incoming,
    Transport& transport) {
  const auto& hello = incoming.hello;
  const auto key = keyOf(incoming);
  const bool last = isFallback(transport, key.policy);
  const auto group = groupOf(state_, key, hello);
  if (!group && (last || needsCarrier(transport))) {
    return Welcome{Verdict::kNotJoined, kNotJoinedText, {}};
  }
  auto made = describedBy(hello);
  made.key = key;
  made.pairSecret = incoming.key.pairSecret();
  Offer reply;
  try {
    if (last) {
      requireFallbackAllowed(group->options().fallback, made.rejected);
    }
    made.connection = transport.accept(
        contextOf(incoming, transport, group.get()),
        {hello.blob, std::move(incoming.fds)},
        reply);
    if (last) { // only a log line: the initiator tells the user
      tellFallback(
          FallbackPolicy::kAllow,
          "pid " + std::to_string(hello.self.pid),
          made.rejected);
    }
  } catch (const std::exception& error) {
    if (statusOf(error).code() == ErrorCode::kExhausted) {
      throw;
    }
    return refusal(error.what());
  }
  if (!hello.probe) {
    dropOthers(key);
  }
  sendWelcome(state_, incoming, key, std::move(reply));
  return made;
}

Transport::Context IncomingHandshakes::contextOf(
    const Incoming& incoming,
    const Transport& transport,
    const Group* group) {
  const auto& hello = incoming.hello;
  Transport::Context context;
  context.nonce = hello.nonce;
  context.peer = hello.self;
  if (incoming.socket.local()) {
    context.peerPid = incoming.socket.credentials().pid;
  }
  if (group != nullptr) {
    context.carrierSource = group->options().carrierSource;
  }
  if (needsSideSocket(transport)) {
    sideSockets_->expect(hello.nonce);
  }
  context.sideSocket = [all = sideSockets_,
                        nonce = hello.nonce](TimePoint deadline) {
    return all->take(nonce, deadline);
  };
  return context;
}

// Ends this end's own attempts, and earlier attempts of the peer.
void IncomingHandshakes::dropOthers(const ChannelKey& key) {
  for (auto* const dialer : dialers_) {
    dialer->drop(key);
  }
  drop([&key](const Answered& other) {
    return !other.made.probe && other.made.key == key;
  });
}

void IncomingHandshakes::onPoll(const std::set<int>& heard) {
  std::erase_if(answered_, [&](Answered& handshake) {
    return heard.contains(handshake.incoming.socket.fd()) &&
        onConfirm(handshake);
  });
}

// Handles the Confirm: the connection works and is handed on, or comes to
// nothing.
bool IncomingHandshakes::onConfirm(Answered& handshake) {
  const auto& made = handshake.made;
  const auto key = made.key;
  try {
    const auto frame = handshake.incoming.socket.receiveFrame();
    if (!frame) {
      return false;
    }
    acceptConfirm(handshake, *frame);
  } catch (const std::exception& error) {
    if (made.probe) {
      logDebug(error.what());
    } else {
      logInfo(
          "a connection with pid " + std::to_string(made.peer.identity.pid) +
          " came to nothing: " + error.what());
      results_.onFailed(
          key, Status(ErrorCode::kPeerFailed, error.what()), false);
    }
    sideSockets_->forget(handshake.incoming.hello.nonce);
  }
  return true;
}

void IncomingHandshakes::acceptConfirm(Answered& handshake, ByteSpan frame) {
  auto& [incoming, made, deadline] = handshake;
  const auto confirm =
      decodeConfirm(incoming.key.open(SessionKey::End::kInitiator, 1, frame));
  if (confirm.nonce != incoming.hello.nonce) {
    throw Error(
        ErrorCode::kPeerFailed, "the peer confirms a different connection");
  }
  if (made.probe) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer confirms a probe, which needs no confirmation");
  }
  if (!confirm.problem.empty()) {
    throw Error(ErrorCode::kPeerFailed, "the peer says: " + confirm.problem);
  }
  if (auto* const verifying = made.connection->verifying()) {
    verifying->confirm(confirm.blob);
  }
  results_.onMade(std::move(made), std::move(incoming.socket));
}

bool IncomingHandshakes::busy(const ChannelKey& key) const {
  const auto concerns = [&key](const auto& handshake) {
    return !handshake.incoming.hello.probe && keyOf(handshake.incoming) == key;
  };
  return std::any_of(answered_.begin(), answered_.end(), concerns) ||
      std::any_of(kept_.begin(), kept_.end(), concerns);
}

void IncomingHandshakes::addTo(std::vector<pollfd>& fds) const {
  for (const auto& handshake : answered_) {
    fds.push_back({handshake.incoming.socket.fd(), POLLIN, 0});
  }
}

TimePoint IncomingHandshakes::nextDeadline() const {
  auto next = kept_.empty() ? never() : deadlineAfter(kReadPause);
  for (const auto& handshake : answered_) {
    next = std::min(next, handshake.deadline);
  }
  return next;
}

void IncomingHandshakes::expire(TimePoint looked) {
  for (auto& [incoming, until] : std::exchange(kept_, {})) {
    onHello(std::move(incoming), until);
  }
  drop([looked](const Answered& handshake) {
    return handshake.deadline <= looked;
  });
}

// Drops the chosen handshakes, and ends their waits for side sockets.
void IncomingHandshakes::drop(
    const std::function<bool(const Answered&)>& which) {
  std::erase_if(answered_, [&](const Answered& handshake) {
    const bool dropped = which(handshake);
    if (dropped) {
      sideSockets_->forget(handshake.incoming.hello.nonce);
    }
    return dropped;
  });
}

} // namespace dlslime
