#include "engine/connect/outgoing_handshake.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "engine/bootstrap/side_sockets.h"

// The functions stand in the order in which a handshake runs through them.

namespace dlslime {

OutgoingHandshake::OutgoingHandshake(
    const EngineState& state,
    const Acceptor& acceptor,
    ConnectRequest request)
    : self_(state.self),
      request_(std::move(request)),
      connector_(state.self, state.directory.get(), request_.record),
      routes_(state, acceptor, request_) {}

void OutgoingHandshake::start() {
  connector_.requireAddress();
  routes_.choose();
  if (!tryNextRoute()) {
    throw Error(
        ErrorCode::kUnavailable,
        "there is no route to its process: " +
            describeRejected(routes_.rejected()));
  }
}

// Returns false when no route is left. Throws when no further route would help.
bool OutgoingHandshake::tryNextRoute() {
  if (!routes_.next()) {
    return false;
  }
  connect();
  return true;
}

void OutgoingHandshake::connect() {
  connector_.start();
  if (connector_.connecting()) {
    deadline_ = deadlineAfter(ControlConnector::kConnectTime);
    return;
  }
  routes_.context().peerPid = connector_.peerPid();
  sendGreeting();
}

bool OutgoingHandshake::onSocket() {
  try {
    if (!connector_.connecting()) {
      return onFrame();
    }
    if (connector_.onWritable()) {
      sendGreeting();
    } else {
      deadline_ = deadlineAfter(ControlConnector::kConnectTime);
    }
  } catch (const std::exception& error) {
    tryNextAddress(statusOf(error));
  }
  return false;
}

void OutgoingHandshake::sendGreeting() {
  key_.reset();
  welcome_.reset();
  greeting_ = {
      request_.record.identity.instance,
      self_.instance,
      request_.key.policy,
      request_.pairSecret.empty() ? SecretKind::kToken : SecretKind::kPair,
      randomBytes(kNonceBytes)};
  auto& socket = *connector_.socket();
  try {
    socket.sendFrame(encode(greeting_));
  } catch (const Error&) {
    // An acceptor short of resources tells why before hanging up.
    if (const auto told = socket.receiveFrame()) {
      onChallenge(*told);
    }
    throw;
  }
  deadline_ = deadlineAfter(HandshakeLimits::kHandshakeTime);
}

// Handles the acceptor's Challenge, then the Welcome with its descriptors.
bool OutgoingHandshake::onFrame() {
  auto& socket = *connector_.socket();
  if (!welcome_) {
    const auto frame = socket.receiveFrame();
    if (!frame) {
      return false;
    }
    if (!key_) {
      onChallenge(*frame);
      return false;
    }
    if (connection_) {
      throw Error(
          ErrorCode::kPeerFailed, "the peer sends more than was asked for");
    }
    welcome_ = decodeWelcome(key_->open(SessionKey::End::kAcceptor, 0, *frame));
  }
  std::vector<UniqueFd> fds;
  if (const size_t count = welcome_->descriptors; count > 0) {
    auto received = socket.receiveDescriptors(count);
    if (!received) {
      return false;
    }
    fds = std::move(*received);
  }
  auto welcome = std::move(*welcome_);
  welcome_.reset();
  onWelcome(std::move(welcome), std::move(fds));
  return verify();
}

// Sends the hello and descriptors only after the acceptor's proof: a wrong
// process must receive neither the offer nor descriptors.
void OutgoingHandshake::onChallenge(ByteSpan frame) {
  const auto challenge = decodeChallenge(frame);
  if (challenge.verdict == Verdict::kLater) {
    throw Error(ErrorCode::kExhausted, challenge.text);
  }
  if (challenge.verdict == Verdict::kStranger) {
    refusedBy(challenge.text);
  }
  const SessionKey key(request_.secret(), greeting_, challenge.nonce);
  if (!key.provenBy(challenge.proof)) {
    throw Error(
        ErrorCode::kPeerFailed,
        request_.pairSecret.empty()
            ? "the answering process does not know the token in the address "
              "record"
            : "the answering process does not know the pair's secret");
  }
  key_ = key;
  auto& socket = *connector_.socket();
  socket.sendFrame(
      key.seal(SessionKey::End::kInitiator, 0, encode(routes_.hello())));
  if (auto& fds = routes_.fds(); !fds.empty()) {
    socket.sendDescriptors(fds);
    fds.clear();
  }
  deadline_ = deadlineAfter(HandshakeLimits::kHandshakeTime);
}

void OutgoingHandshake::refusedBy(const std::string& text) const {
  throw Error(
      request_.replaces != 0 ? ErrorCode::kTransportFailed
                             : ErrorCode::kPeerFailed,
      "the peer refuses the connection: " + text);
}

void OutgoingHandshake::onWelcome(Welcome welcome, std::vector<UniqueFd> fds) {
  switch (welcome.verdict) {
    case Verdict::kAccepted:
      finish(std::move(welcome), std::move(fds));
      return;
    case Verdict::kRefused:
      tryAnotherRoute(welcome.text);
      return;
    case Verdict::kCrossed: // the peer's own connection comes
      routes_.withdraw();
      connector_.close();
      deadline_ = deadlineAfter(kCrossedTime);
      return;
    case Verdict::kLater:
      throw Error(ErrorCode::kExhausted, welcome.text);
    case Verdict::kNotJoined:
      throw Error(ErrorCode::kNotJoined, welcome.text);
    case Verdict::kStranger:
      refusedBy(welcome.text);
  }
}

// Makes the connection out of the peer's answer.
void OutgoingHandshake::finish(Welcome welcome, std::vector<UniqueFd> fds) {
  try {
    auto& transport = routes_.transport();
    if (needsSideSocket(transport)) {
      // Begins with the address reached by this socket.
      routes_.context().sideSocket =
          [way = routes_.sideSocket(connector_.recordAsReached(), greeting_)](
              TimePoint deadline) { return openSideSocket(way, deadline); };
    }
    connection_ = transport.finish(
        routes_.context(), {std::move(welcome.blob), std::move(fds)});
    peerLast_ = welcome.lastSeen;
    peerUnexpected_ = welcome.unexpectedLimit;
    deadline_ = deadlineAfter(
        needsSideSocket(routes_.transport()) ? HandshakeLimits::kHandshakeTime
                                             : kVerifyTime);
  } catch (const Error& error) {
    tellProblem(error.what());
    if (error.status().code() == ErrorCode::kExhausted) {
      throw;
    }
    tryAnotherRoute(error.what());
  }
}

bool OutgoingHandshake::verify() {
  Confirm confirm;
  if (!connection_ || !messagesPass(confirm)) {
    return false;
  }
  if (!request_.probe()) {
    if (routes_.isFallbackTaken()) {
      tellFallback(request_.fallback, describePeer(), routes_.rejected());
    }
    confirm.nonce = routes_.context().nonce;
    sendConfirm(confirm);
  }
  return true;
}

bool OutgoingHandshake::verifyAgain() {
  try {
    return verify();
  } catch (const std::exception& error) {
    tryNextAddress(statusOf(error));
    return false;
  }
}

// Returns false when unknown yet, or when the next route is being tried.
bool OutgoingHandshake::messagesPass(Confirm& confirm) {
  try {
    auto* const verifying = connection_->verifying();
    return verifying == nullptr || verifying->verify(confirm.blob);
  } catch (const Error& error) {
    // No room for the side socket is a passing shortage, as with the first
    // socket: a later attempt tries the route again.
    if (error.status().code() == ErrorCode::kExhausted &&
        needsSideSocket(routes_.transport())) {
      tellProblem(error.what());
      throw;
    }
    tryAnotherRoute(error.what());
    return false;
  }
}

void OutgoingHandshake::sendConfirm(const Confirm& confirm) {
  connector_.socket()->sendFrame(
      key_->seal(SessionKey::End::kInitiator, 1, encode(confirm)));
}

MadeConnection OutgoingHandshake::take() {
  MadeConnection made;
  made.key = request_.key;
  made.peer = std::move(request_.record);
  made.pairSecret = key_->pairSecret();
  made.unexpectedLimit = peerUnexpected_;
  made.connection = std::move(connection_);
  made.rejected = routes_.takeRejected();
  made.replaces = request_.replaces;
  made.peerLast = peerLast_;
  made.probe = request_.probe();
  made.began = true;
  return made;
}

// From here on: what is done when something goes wrong.

// Tells the problem to a peer that has accepted the connection and waits for
// the Confirm.
void OutgoingHandshake::tellProblem(const std::string& what) {
  try {
    sendConfirm({routes_.context().nonce, {}, what});
  } catch (const Error& error) {
    logDebug(std::string("the peer does not wait: ") + error.what());
  }
}

void OutgoingHandshake::tryAnotherRoute(const std::string& why) {
  if (connection_) {
    tellProblem(why);
  }
  connection_.reset();
  routes_.reject(why);
  if (!tryNextRoute()) {
    throw Error(
        ErrorCode::kUnavailable,
        "no route works: " + describeRejected(routes_.rejected()));
  }
}

void OutgoingHandshake::tryNextAddress(const Status& why) {
  // With a connection, the intended process has answered.
  if (why.code() == ErrorCode::kUnavailable || connection_ ||
      !connector_.mayTryNext()) {
    throw Error(why);
  }
  connector_.tryNext(why);
  deadline_ = deadlineAfter(ControlConnector::kConnectTime);
}

bool OutgoingHandshake::onLate() {
  if (connection_) {
    tryAnotherRoute("the connection is made, but no message passes");
    return false;
  }
  std::string text =
      "its process accepts connections but has not answered for " +
      std::to_string(
          HandshakeLimits::kHandshakeTime / std::chrono::seconds(1)) +
      " s";
  if (!connector_.socket()) {
    text =
        "the peer has connected to this process, or was connecting, but no "
        "connection has come within " +
        std::to_string(kCrossedTime / milliseconds(1)) + " ms";
  } else if (connector_.connecting()) {
    text = "no answer for " +
        std::to_string(
               ControlConnector::kConnectTime / std::chrono::seconds(1)) +
        " s";
  }
  tryNextAddress(Status(ErrorCode::kTimeout, text));
  return false;
}

std::string OutgoingHandshake::describePeer() const {
  const auto& peer = request_.record.identity;
  return "rank " + std::to_string(request_.rank) + " (pid " +
      std::to_string(peer.pid) + " on " + peer.host + ")";
}

} // namespace dlslime
