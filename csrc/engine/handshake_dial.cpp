#include "engine/handshakes.h"

// The side of a handshake that connects: from an address record to a socket.

namespace dlslime {

void Handshakes::connect(Attempt& attempt) {
  const auto& record = attempt.request.record;
  if (!sameHost(state_.self, record.identity)) {
    connectByNetwork(attempt);
    return;
  }
  try {
    attempt.socket = ControlSocket::connectTo(record.socketName);
  } catch (const Error& error) {
    attempt.gone = error.status().code() == ErrorCode::kPeerFailed;
    throw;
  }
  const auto other = attempt.socket->credentials();
  if (other.uid != record.identity.uid) {
    throw Error(
        ErrorCode::kPeerFailed,
        "its socket belongs to uid " + std::to_string(other.uid) +
            ", the address record to uid " +
            std::to_string(record.identity.uid));
  }
  sendHello(attempt);
}

// No later try would find any.
void Handshakes::requireAddress(const Attempt& attempt) const {
  const auto& record = attempt.request.record;
  if (!sameHost(state_.self, record.identity) && record.addresses.empty()) {
    throw Error(
        ErrorCode::kUnavailable,
        "it is on another host (" + record.identity.host +
            ") and has no network address there: its log says why "
            "(DLSLIME_SOCKET_IFNAME)");
  }
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
      "nobody answers at " + attempt.unreachable);
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
  sendHello(attempt);
}

void Handshakes::sendHello(Attempt& attempt) {
  try {
    attempt.socket->sendFrame(attempt.hello, attempt.helloFds);
  } catch (const Error&) {
    // One that can't serve us says why before it hangs up.
    auto told = attempt.socket->receiveFrame();
    if (told) {
      settle(attempt, decodeWelcome(told->bytes), *told);
    }
    throw;
  }
  attempt.helloFds.clear();
  attempt.deadline = deadlineAfter(kHandshakeTime);
}

// Whoever answers at one address of another host need not be the one we mean:
// several hosts may have it, on networks of their own.
void Handshakes::onProblem(const ChannelKey& key, const Status& why) {
  auto& attempt = attempts_.at(key);
  const auto& record = attempt.request.record;
  try {
    if (why.code() != ErrorCode::kUnavailable && attempt.socket &&
        !attempt.connection && // else it was the one we mean
        !sameHost(state_.self, record.identity) &&
        attempt.address < record.addresses.size()) {
      nextAddress(attempt, why);
      connectByNetwork(attempt); // or tells all that were tried
      return;
    }
  } catch (const Error& error) {
    fail(key, error.status());
    return;
  }
  fail(key, why);
}

} // namespace dlslime
