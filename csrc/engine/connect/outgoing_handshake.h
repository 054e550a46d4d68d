#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/bootstrap/handshake_limits.h"
#include "engine/bootstrap/session_key.h"
#include "engine/connect/connect_request.h"
#include "engine/connect/control_connector.h"
#include "engine/connect/made_connection.h"
#include "engine/connect/route_trials.h"

namespace dlslime {

// Initiator's side of a handshake, from an address record to a connection over
// which messages pass (docs/protocol.md, "Connecting two processes"): tries
// route after route, and for each address after address. Wire-up thread only.
class OutgoingHandshake {
 public:
  // Time for the peer's own connection after kCrossed: a crossing peer has got
  // through already, while a peer that has not yet noticed the loss of the
  // previous connection never comes.
  static constexpr milliseconds kCrossedTime{1000};
  // Time until a new connection is known to work: RDMA retries for 4.3 s by
  // default.
  static constexpr milliseconds kVerifyTime{6000};

  OutgoingHandshake(
      const EngineState& state,
      const Acceptor& acceptor,
      ConnectRequest request);
  OutgoingHandshake(const OutgoingHandshake&) = delete; // parts refer to parts

  // The functions below take the handshake on, and throw when it has failed for
  // good. Those that return bool return true once the connection is usable:
  // then take() and takeSocket() follow.

  // Sends the first greeting, or starts connecting.
  void start();
  // Serves the socket, found ready by poll().
  bool onSocket();
  // Looks again whether messages pass over a made connection.
  bool verifyAgain();
  // Acts on the deadline.
  bool onLate();

  MadeConnection take();
  ControlSocket takeSocket() {
    return connector_.take();
  }
  // Releases what the transport holds for the handshake. To be called unless
  // the connection was taken.
  void withdraw() {
    routes_.withdraw();
  }

  const ControlConnector& connector() const {
    return connector_;
  }
  bool isVerifying() const {
    return connection_ != nullptr;
  }
  TimePoint deadline() const {
    return deadline_;
  }

 private:
  bool tryNextRoute();
  void connect();
  void sendGreeting();
  bool onFrame();
  void onChallenge(ByteSpan frame);
  [[noreturn]] void refusedBy(const std::string& text) const;
  void onWelcome(Welcome welcome, std::vector<UniqueFd> fds);
  void finish(Welcome welcome, std::vector<UniqueFd> fds);
  bool verify();
  bool messagesPass(Confirm& confirm);
  void sendConfirm(const Confirm& confirm);
  void tellProblem(const std::string& what);
  void tryAnotherRoute(const std::string& why);
  void tryNextAddress(const Status& why);
  std::string describePeer() const;

  const PeerIdentity& self_;
  ConnectRequest request_;
  ControlConnector connector_;
  RouteTrials routes_;
  Greeting greeting_; // the last greeting sent
  std::optional<SessionKey> key_; // set by the acceptor's proof
  std::optional<Welcome> welcome_; // set while descriptors are outstanding
  std::unique_ptr<Connection> connection_; // made, and being verified
  uint64_t peerLast_ = 0; // lastSeen of the Welcome
  uint64_t peerUnexpected_ = 0; // unexpectedLimit of the Welcome, in bytes
  TimePoint deadline_ = never();
};

} // namespace dlslime
