#include "base/random.h"
#include "engine/connect/handshakes.h"

// Initiator's side of a handshake: from an address record to the acceptor's
// answer.

namespace dlslime {

void Handshakes::connect(Attempt& attempt) {
  const auto& record = attempt.request.record;
  if (!meetLocally(state_.self, record.identity)) {
    connectByNetwork(attempt);
    return;
  }
  try {
    attempt.socket = ControlSocket::connectTo(record.socketName);
  } catch (const Error& error) {
    attempt.gone = error.status().code() == ErrorCode::kPeerFailed;
    throw;
  }
  attempt.context.peerPid = attempt.socket->requireUser(state_.self.uid);
  sendGreeting(attempt);
}

// Throws Error{kUnavailable} when the record has no usable address: no later
// try would find an address.
void Handshakes::requireAddress(const Attempt& attempt) const {
  const auto& record = attempt.request.record;
  if (meetLocally(state_.self, record.identity) || !record.addresses.empty()) {
    return;
  }
  const auto& peer = record.identity;
  throw Error(
      ErrorCode::kUnavailable,
      sameHost(state_.self, peer)
          ? "it is of another user (uid " + std::to_string(peer.uid) +
              ", this process of uid " + std::to_string(state_.self.uid) +
              "), so that both can connect only over the network, and it has "
              "no network address (DLSLIME_SOCKET_IFNAME)"
          : "it is on another host (" + peer.host +
              ") and has no network address there: its log says why "
              "(DLSLIME_SOCKET_IFNAME)");
}

void Handshakes::connectByNetwork(Attempt& attempt) {
  const auto& addresses = attempt.request.record.addresses;
  while (attempt.address < addresses.size()) {
    attempt.connecting = true;
    try {
      attempt.socket =
          ControlSocket::startConnecting(addresses[attempt.address]);
      attempt.deadline = deadlineAfter(kConnectTime);
      return;
    } catch (const Error& error) {
      nextAddress(attempt, error.status());
    }
  }
  attempt.gone = attempt.refused;
  throw Error(
      attempt.givenUp ? ErrorCode::kTransportFailed : ErrorCode::kPeerFailed,
      "no process answers at " + attempt.unreachable);
}

void Handshakes::nextAddress(Attempt& attempt, const Status& problem) {
  const auto& tried = attempt.request.record.addresses.at(attempt.address++);
  attempt.unreachable += (attempt.unreachable.empty() ? "" : "; ") + tried +
      " (" + problem.message() + ")";
  attempt.refused &=
      attempt.connecting && problem.code() == ErrorCode::kPeerFailed;
  attempt.givenUp |= problem.code() == ErrorCode::kTransportFailed;
}

void Handshakes::onConnected(Attempt& attempt) {
  try {
    attempt.socket->finishConnecting();
  } catch (const Error& error) {
    nextAddress(attempt, error.status());
    connectByNetwork(attempt);
    return;
  }
  attempt.connecting = false;
  sendGreeting(attempt);
}

void Handshakes::sendGreeting(Attempt& attempt) {
  attempt.key.reset();
  attempt.welcome.reset();
  attempt.greeting.nonce = randomBytes(kNonceBytes);
  try {
    attempt.socket->sendFrame(encode(attempt.greeting));
  } catch (const Error&) {
    // An acceptor short of resources tells why before hanging up.
    if (const auto told = attempt.socket->receiveFrame()) {
      onChallenge(attempt, *told);
    }
    throw;
  }
  attempt.deadline = deadlineAfter(kHandshakeTime);
}

// Sends the hello and descriptors only after the acceptor's proof: a wrong
// process must receive neither the offer nor descriptors.
void Handshakes::onChallenge(Attempt& attempt, ByteSpan frame) {
  const auto challenge = decodeChallenge(frame);
  if (challenge.verdict == Verdict::kLater) {
    throw Error(ErrorCode::kExhausted, challenge.text);
  }
  if (challenge.verdict == Verdict::kStranger) {
    refusedBy(attempt, challenge.text);
  }
  const SessionKey key(
      attempt.request.secret(), attempt.greeting, challenge.nonce);
  if (!key.provenBy(challenge.proof)) {
    throw Error(
        ErrorCode::kPeerFailed,
        attempt.request.pairSecret.empty()
            ? "the answering process does not know the token in the address "
              "record"
            : "the answering process does not know the pair's secret");
  }
  attempt.key = key;
  attempt.socket->sendFrame(
      key.seal(SessionKey::End::kInitiator, 0, encode(attempt.hello)));
  if (!attempt.helloFds.empty()) {
    attempt.socket->sendDescriptors(attempt.helloFds);
    attempt.helloFds.clear();
  }
  attempt.deadline = deadlineAfter(kHandshakeTime);
}

void Handshakes::onAnswer(const ChannelKey& key) {
  auto& attempt = attempts_.at(key);
  auto& socket = *attempt.socket;
  if (!attempt.welcome) {
    const auto frame = socket.receiveFrame();
    if (!frame) {
      return;
    }
    if (!attempt.key) {
      onChallenge(attempt, *frame);
      return;
    }
    if (attempt.connection) {
      throw Error(
          ErrorCode::kPeerFailed, "the peer sends more than was asked for");
    }
    attempt.welcome =
        decodeWelcome(attempt.key->open(SessionKey::End::kAcceptor, 0, *frame));
  }
  std::vector<UniqueFd> fds;
  if (const size_t count = attempt.welcome->descriptors; count > 0) {
    auto received = socket.receiveDescriptors(count);
    if (!received) {
      return;
    }
    fds = std::move(*received);
  }
  auto welcome = std::move(*attempt.welcome);
  attempt.welcome.reset();
  settle(attempt, std::move(welcome), std::move(fds));
  if (verify(attempt)) {
    attempts_.erase(key);
  }
}

// Tries the next address, or fails. Several hosts, on separate networks, may
// have equal addresses, so a wrong process may have answered.
void Handshakes::onProblem(const ChannelKey& key, const Status& why) {
  auto& attempt = attempts_.at(key);
  const auto& record = attempt.request.record;
  try {
    if (why.code() != ErrorCode::kUnavailable && attempt.socket &&
        !attempt.connection && // else the intended process has answered
        !meetLocally(state_.self, record.identity) &&
        attempt.address < record.addresses.size()) {
      nextAddress(attempt, why);
      connectByNetwork(attempt); // throws after the last, naming all tried
      return;
    }
  } catch (const Error& error) {
    fail(key, error.status());
    return;
  }
  fail(key, why);
}

} // namespace dlslime
