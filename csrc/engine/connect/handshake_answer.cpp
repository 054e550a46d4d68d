#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/random.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_lock.h"

// Acceptor's side of a handshake.

namespace dlslime {

namespace {
constexpr microseconds kDrainPause{50};

Welcome refusal(std::string why) {
  return {Verdict::kRefused, std::move(why), {}, 0};
}
} // namespace

// Throws Error if no further handshake may begin: the handshakes of an origin
// must leave room for all remaining origins.
void Handshakes::requireRoomToBegin(const Incoming& incoming) const {
  const auto origin = incoming.socket.peerOrigin();
  const auto ofOrigin = std::count_if(
      incoming_.begin(),
      incoming_.end(),
      [&](const IncomingHandshake& handshake) {
        return handshake.incoming.socket.peerOrigin() == origin;
      });
  limits_.requireRoomToBegin(incoming_.size(), static_cast<size_t>(ofOrigin));
}

void Handshakes::requireRoomToStay(const Incoming& incoming) const {
  const auto& socket = incoming.socket;
  const bool one = socket.local() && socket.credentials().pid != 0;
  const EngineLock lock(state_);
  const auto open = state_.channels.countOf(socket.peerOrigin());
  limits_.requireRoomToStay(socket.peerOrigin(), open, one);
}

void Handshakes::onIncoming(Incoming incoming) {
  Welcome refusal;
  try {
    if (incoming.hello.route == kSideRoute) {
      bringSideSocket(incoming);
      return;
    }
    requireRoomToBegin(incoming);
    auto made = answer(incoming, refusal);
    if (made) {
      incoming_.push_back(
          {std::move(incoming),
           std::move(*made),
           deadlineAfter(kHandshakeTime)});
      return;
    }
  } catch (const std::exception& error) {
    const auto status = statusOf(error);
    if (status.code() != ErrorCode::kExhausted) {
      acceptor_.sayRefused(incoming.socket, status.message());
      return;
    }
    refusal = {Verdict::kLater, "the peer says: " + status.message(), {}};
  }
  try {
    incoming.answer(encode(refusal));
  } catch (const Error& error) {
    // The peer has given up already, most often because this process has
    // connected to the peer.
    logDebug(std::string("an answer was not wanted: ") + error.what());
  }
}

// Handles the Confirm: the connection works and is installed, or comes to
// nothing.
bool Handshakes::onConfirm(IncomingHandshake& handshake) {
  auto& [incoming, made, deadline] = handshake;
  const auto key = made.key;
  try {
    const auto frame = incoming.socket.receiveFrame();
    if (!frame) {
      return false;
    }
    const auto confirm = decodeConfirm(
        incoming.key.open(SessionKey::End::kInitiator, 1, *frame));
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
    install(std::move(made), std::move(incoming.socket));
  } catch (const std::exception& error) {
    if (made.probe) {
      logDebug(error.what());
    } else {
      logInfo(
          "a connection with pid " + std::to_string(made.peer.identity.pid) +
          " came to nothing: " + error.what());
      noteFailure(key, {Status(ErrorCode::kPeerFailed, error.what()), false});
    }
    sideSockets_->forget(incoming.hello.nonce);
  }
  return true;
}

// Returns the accepted connection, or nothing with the reason in `refusal`.
std::optional<Handshakes::Made> Handshakes::answer(
    Incoming& incoming,
    Welcome& refusal) {
  const auto& hello = incoming.hello;
  const ChannelKey key{incoming.greeting.self, incoming.greeting.policy};
  if (!hello.probe) {
    if (ownAttemptGoesOn(key)) {
      refusal = {Verdict::kCrossed, "", {}};
      return std::nullopt;
    }
    if (auto already = answerReplacing(key, hello)) {
      refusal = std::move(*already);
      return std::nullopt;
    }
    if (hello.replaces == 0) {
      requireRoomToStay(incoming);
    }
  }
  auto* const transport = state_.transports.find(hello.route);
  if (transport == nullptr) {
    refusal = {
        Verdict::kRefused,
        "the peer says: " + state_.transports.whyNot(hello.route),
        {}};
    return std::nullopt;
  }
  const auto reachable = transport->reaches(state_.self, hello.self);
  if (!reachable.ok()) {
    refusal = {Verdict::kRefused, "the peer says: " + reachable.message(), {}};
    return std::nullopt;
  }
  return connectIncoming(incoming, *transport, refusal);
}

// Delivers the side socket of a connection accepted by this end.
void Handshakes::bringSideSocket(Incoming& incoming) {
  if (!sideSockets_->bring(incoming.hello.nonce, incoming.socket.release())) {
    throw Error(
        ErrorCode::kPeerFailed, "the peer's second socket is not expected");
  }
}

// Returns whether this end's own attempt beats the peer's. When both ends
// connect at once, the attempt of the end with the smaller instance number goes
// on, so exactly one connection is made. An own attempt counts only once
// connected, as the peer's already is.
bool Handshakes::ownAttemptGoesOn(const ChannelKey& key) const {
  const auto own = attempts_.find(key);
  return own != attempts_.end() && !own->second.request.than &&
      own->second.socket && !own->second.connecting &&
      state_.self.instance < key.instance;
}

// Returns the answer when an existing connection decides; nothing: a new
// connection is to be made.
std::optional<Welcome> Handshakes::answerReplacing(
    const ChannelKey& key,
    const Hello& hello) {
  std::shared_ptr<PeerChannel> channel;
  // Set on a repeated request: the peer waits between requests, not this
  // thread.
  bool again = false;
  {
    const EngineLock lock(state_);
    channel = state_.channels.find(key);
    if (hello.replaces == 0) {
      return channel ? std::optional(Welcome{Verdict::kCrossed, "", {}, 0})
                     : std::nullopt;
    }
    const Status why(
        ErrorCode::kTransportFailed, "the other end asks for a new connection");
    if (channel && hello.replaces < channel->generation()) {
      return Welcome{Verdict::kCrossed, "", {}, 0}; // replaced already
    }
    if (!channel) {
      return Welcome{
          Verdict::kStranger,
          "the connection that is to be replaced is given up",
          {},
          0};
    }
    again = !channel->open();
    if (!again && !channel->handOver(why)) {
      return refusal("the old connection can't be replaced now");
    }
  }
  // Messages received over the old connection count, so that connection is read
  // to the end. Reading takes microseconds, but longer over Gloo, or when a
  // malicious peer withholds the end: then the peer has to ask again.
  const auto end = again ? Clock::now() : drainUntil_;
  for (;;) {
    {
      const EngineLock lock(state_);
      channel->poll();
      state_.retireFailed();
    }
    state_.closer.advance();
    {
      const EngineLock lock(state_);
      if (!channel->alive()) {
        return Welcome{Verdict::kStranger, channel->failure().message(), {}, 0};
      }
      if (channel->awaitsConnection()) {
        state_.channels.dropSocket(*channel);
        return std::nullopt;
      }
    }
    if (Clock::now() >= end) {
      break;
    }
    std::this_thread::sleep_for(kDrainPause);
  }
  return refusal("the old connection is not yet read to the end");
}

// Returns the group that needs the connection: for a replacement, any group
// using the replaced connection. Null proves little, since the peer may have
// read the address record of an earlier incarnation.
std::shared_ptr<Group> Handshakes::groupOf(
    const ChannelKey& key,
    const Hello& hello) {
  const EngineLock lock(state_);
  if (auto group = state_.groupRegistry.find(hello.group)) {
    return group;
  }
  const auto replaced =
      hello.replaces == 0 ? nullptr : state_.channels.find(key);
  int rank = 0;
  return replaced ? state_.groupUsing(*replaced, rank) : nullptr;
}

Transport::Context Handshakes::contextOf(
    const Incoming& incoming,
    const Transport& transport) {
  const auto& hello = incoming.hello;
  Transport::Context context;
  context.nonce = hello.nonce;
  context.peer = hello.self;
  if (incoming.socket.local()) {
    context.peerPid = incoming.socket.credentials().pid;
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

std::optional<Handshakes::Made> Handshakes::connectIncoming(
    Incoming& incoming,
    Transport& transport,
    Welcome& refusal) {
  const auto& hello = incoming.hello;
  const ChannelKey key{incoming.greeting.self, incoming.greeting.policy};
  const bool last = isFallback(transport, key.policy);
  const auto group = groupOf(key, hello);
  if (!group && (last || needsCarrier(transport))) {
    refusal = {Verdict::kNotJoined, kNotJoinedText, {}};
    return std::nullopt;
  }
  auto context = contextOf(incoming, transport);
  if (group) {
    context.carrierSource = group->options().carrierSource;
  }
  std::vector<RejectedRoute> rejected;
  rejected.reserve(hello.rejected.size());
  for (const auto& [route, reason] : hello.rejected) {
    rejected.push_back({route, reason});
  }
  Offer reply;
  std::unique_ptr<Connection> connection;
  try {
    if (last) {
      requireFallbackAllowed(group->options().fallback, rejected);
    }
    connection =
        transport.accept(context, {hello.blob, std::move(incoming.fds)}, reply);
    if (last) { // only a log line: the initiator tells the user
      tellFallback(
          FallbackPolicy::kAllow,
          "pid " + std::to_string(context.peer.pid),
          rejected);
    }
  } catch (const std::exception& error) {
    if (statusOf(error).code() == ErrorCode::kExhausted) {
      throw; // the peer tries again
    }
    refusal = {
        Verdict::kRefused, std::string("the peer says: ") + error.what(), {}};
    return std::nullopt;
  }
  if (!hello.probe) {
    dropOthers(key);
  }
  welcome(incoming, key, std::move(reply));
  // The members are set singly, because no exception may strike a half-built
  // aggregate.
  Made made;
  made.key = key;
  made.peer.identity = hello.self;
  made.peer.socketName = hello.socketName;
  made.peer.addresses = hello.addresses;
  made.pairSecret = incoming.key.pairSecret();
  made.unexpectedLimit = hello.unexpectedLimit;
  made.connection = std::move(connection);
  made.rejected = std::move(rejected);
  made.replaces = hello.replaces;
  made.peerLast = hello.lastSeen;
  made.probe = hello.probe;
  return made;
}

void Handshakes::welcome(
    Incoming& incoming,
    const ChannelKey& key,
    Offer reply) {
  const Welcome welcome{
      Verdict::kAccepted,
      "",
      std::move(reply.blob),
      lastSeen(key),
      static_cast<uint8_t>(reply.fds.size()),
      state_.config.unexpectedLimitBytes};
  incoming.answer(encode(welcome));
  if (!reply.fds.empty()) {
    incoming.socket.sendDescriptors(reply.fds);
  }
}

// Drops the chosen handshakes, and ends the waits for side sockets of the
// handshakes.
void Handshakes::dropIncoming(
    const std::function<bool(const IncomingHandshake&)>& which) {
  std::erase_if(incoming_, [&](const IncomingHandshake& handshake) {
    const bool dropped = which(handshake);
    if (dropped) {
      sideSockets_->forget(handshake.incoming.hello.nonce);
    }
    return dropped;
  });
}

// Drops this end's own attempt, and earlier attempts of the peer.
void Handshakes::dropOthers(const ChannelKey& key) {
  drop(key);
  dropIncoming([&](const IncomingHandshake& other) {
    return !other.made.probe && other.made.key == key;
  });
}

uint64_t Handshakes::lastSeen(const ChannelKey& key) {
  const EngineLock lock(state_);
  const auto channel = state_.channels.find(key);
  return channel ? channel->lastSeen() : 0;
}

} // namespace dlslime
