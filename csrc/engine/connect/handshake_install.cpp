#include "base/log.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_lock.h"
#include "engine/state/preparing.h"

// Last steps of a handshake, after the peer's answer: the connection is
// verified and put to use.

namespace dlslime {

// Acts on the Welcome. Throws when the attempt has failed.
void Handshakes::settle(
    Attempt& attempt,
    Welcome welcome,
    std::vector<UniqueFd> fds) {
  switch (welcome.verdict) {
    case Verdict::kAccepted:
      try {
        makeSideSocket(attempt);
        attempt.connection = attempt.transport->finish(
            attempt.context, {std::move(welcome.blob), std::move(fds)});
        attempt.peerLast = welcome.lastSeen;
        attempt.peerUnexpected = welcome.unexpectedLimit;
        attempt.deadline = deadlineAfter(
            needsSideSocket(*attempt.transport) ? kHandshakeTime : kVerifyTime);
      } catch (const Error& error) {
        tellProblem(attempt, error.what());
        if (error.status().code() == ErrorCode::kExhausted) {
          throw;
        }
        tryAnother(attempt, error.what());
      }
      return;
    case Verdict::kRefused:
      tryAnother(attempt, welcome.text);
      return;
    case Verdict::kCrossed:
      attempt.transport->withdraw(attempt.context);
      attempt.socket.reset();
      attempt.deadline = deadlineAfter(kCrossedTime);
      return;
    case Verdict::kLater:
      throw Error(ErrorCode::kExhausted, welcome.text);
    case Verdict::kNotJoined:
      throw Error(ErrorCode::kNotJoined, welcome.text);
    case Verdict::kStranger:
      refusedBy(attempt, welcome.text);
  }
}

void Handshakes::refusedBy(const Attempt& attempt, const std::string& text) {
  throw Error(
      attempt.request.replaces != 0 ? ErrorCode::kTransportFailed
                                    : ErrorCode::kPeerFailed,
      "the peer refuses the connection: " + text);
}

void Handshakes::sendConfirm(Attempt& attempt, const Confirm& confirm) {
  attempt.socket->sendFrame(
      attempt.key->seal(SessionKey::End::kInitiator, 1, encode(confirm)));
}

// Tells the problem to a peer that has accepted the connection and waits for
// the Confirm.
void Handshakes::tellProblem(Attempt& attempt, const std::string& what) {
  try {
    sendConfirm(attempt, {attempt.context.nonce, {}, what});
  } catch (const Error& error) {
    logDebug(std::string("the peer does not wait: ") + error.what());
  }
}

// Returns whether messages pass; false when unknown yet, or when the next route
// is being tried. Throws when the attempt has failed.
bool Handshakes::isVerified(Attempt& attempt, Confirm& confirm) {
  try {
    auto* const verifying = attempt.connection->verifying();
    return verifying == nullptr || verifying->verify(confirm.blob);
  } catch (const Error& error) {
    // No room for the side socket is a passing shortage, as with the first
    // socket: a later attempt tries the route again.
    if (error.status().code() == ErrorCode::kExhausted &&
        needsSideSocket(*attempt.transport)) {
      tellProblem(attempt, error.what());
      throw;
    }
    tryAnother(attempt, error.what());
    return false;
  }
}

// Returns true when the attempt has ended well. Throws when the attempt has
// failed.
bool Handshakes::verify(Attempt& attempt) {
  if (!attempt.connection) {
    return false;
  }
  Confirm confirm;
  if (!isVerified(attempt, confirm)) {
    return false;
  }
  if (attempt.request.than) {
    judge(attempt);
    return true;
  }
  if (isFallback(*attempt.transport, attempt.request.key.policy)) {
    tellFallback(
        attempt.request.fallback, describePeer(attempt), attempt.rejected);
  }
  confirm.nonce = attempt.context.nonce;
  sendConfirm(attempt, confirm);
  install(
      {attempt.request.key,
       std::move(attempt.request.record),
       attempt.key->pairSecret(),
       attempt.peerUnexpected,
       std::move(attempt.connection),
       std::move(attempt.rejected),
       attempt.request.replaces,
       attempt.peerLast,
       false,
       true},
      std::move(*attempt.socket));
  return true;
}

// Notes the connection of a successful probe if better than the standing
// connection.
void Handshakes::judge(const Attempt& attempt) {
  const auto& than = *attempt.request.than;
  const auto& found = *attempt.connection;
  const auto info = found.info();
  if (found.route() != than.route || info.merit > than.merit) {
    better_.push_back(
        {attempt.request.key,
         std::string(found.route()) +
             (info.devices.empty() ? "" : " by " + info.devices)});
  }
}

void Handshakes::install(Made made, ControlSocket socket) {
  const auto& peer = made.peer.identity;
  news_ = true;
  acceptor_.noteRoom();
  failures_.erase(made.key);
  EngineLock lock(state_);
  logInfo(
      "connected to pid " + std::to_string(peer.pid) + " on " + peer.host +
      " over " + std::string(made.connection->route()) + "/" +
      std::string(made.connection->info().copyName));
  if (made.replaces != 0) {
    installAgain(lock, made, std::move(socket));
  } else {
    auto channel = state_.makeChannel(peer, made.unexpectedLimit);
    channel->connected(
        std::move(made.connection), std::move(made.rejected), made.began);
    state_.channels.add(
        made.key,
        {std::move(made.peer), std::move(made.pairSecret)},
        std::move(channel),
        std::move(socket));
  }
  state_.retireFailed(); // sending again at once may have failed the channel
  // The peer may have sent, and rung the doorbell, before the channel existed.
  state_.epoll.kick();
}

// Returns the channel awaiting the connection, and in `unprepared` the
// operations not yet prepared for the connection. Throws Error when no channel
// waits any more.
std::shared_ptr<PeerChannel> Handshakes::whoAwaits(
    const Made& made,
    Unprepared& unprepared) {
  auto channel = state_.channels.find(made.key);
  if (!channel || !channel->awaitsConnection()) {
    throw Error(
        ErrorCode::kTransportFailed,
        "the connection that was to be replaced is given up");
  }
  unprepared =
      state_.groupRegistry.unprepared(*channel, made.connection->registrar());
  return channel;
}

void Handshakes::installAgain(
    EngineLock& lock,
    Made& made,
    ControlSocket socket) {
  Unprepared unprepared;
  auto channel = whoAwaits(made, unprepared);
  while (!unprepared.operations.empty()) {
    lock.leave();
    prepareAll(state_, unprepared);
    lock.enterAgain();
    channel = whoAwaits(made, unprepared);
  }
  state_.channels.replaceSocket(*channel, std::move(socket));
  channel->resumed(
      std::move(made.connection),
      std::move(made.rejected),
      made.replaces + 1,
      made.peerLast,
      made.began);
}

void Handshakes::onVerifying(const ChannelKey& key) {
  try {
    if (verify(attempts_.at(key))) {
      attempts_.erase(key);
    }
  } catch (const std::exception& error) {
    onProblem(key, statusOf(error));
  }
}

} // namespace dlslime
