#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <poll.h>

#include "engine/bootstrap/listener.h"
#include "engine/bootstrap/session_key.h"
#include "engine/connect/handshake_limits.h"
#include "engine/connect/refusal_log.h"

namespace dlslime {

// A process that has connected to us and proved that it knows the secret, with
// what it asks for.
struct Incoming {
  ControlSocket socket;
  SessionKey key;
  Greeting greeting;
  Hello hello;
  std::vector<UniqueFd> fds; // as many as the hello has announced

  // Sends a record of the handshake, sealed. Throws Error.
  void answer(ByteSpan record) {
    socket.sendFrame(key.seal(SessionKey::End::kAcceptor, 0, record));
  }
};

// Answers every connection to this process until it has proved itself
// (docs/protocol.md, "Connecting two processes"). Anything may connect: until
// the proof it costs one descriptor, a kilobyte, and a second. On the wire-up
// thread only.
class Acceptor {
 public:
  struct Self {
    PeerIdentity identity;
    std::string interfaces; // of the network to listen on, and ...
    std::string interfacesSetting; // ... the variable that says so, for texts
  };
  // The secret of this kind that this process shares with that one; empty:
  // none.
  using SecretOf = std::function<Bytes(const Greeting& greeting)>;
  Acceptor(Self self, SecretOf secretOf);

  const std::string& socketName() const {
    return local_.names().front();
  }
  std::vector<std::string> addresses() const {
    return network_ ? network_->names() : std::vector<std::string>();
  }
  void addTo(std::vector<pollfd>& fds) const;
  // `heard`: descriptors that poll() has found ready.
  void onPoll(const std::set<int>& heard);
  // Those that have proved themselves since the last call.
  std::vector<Incoming> take() {
    return std::exchange(proven_, {});
  }
  TimePoint nextDeadline() const;
  // Drops what is late. `looked`: up to when onPoll() has been told of all.
  void expire(TimePoint looked);
  // There are descriptors again: a shortage is worth a line.
  void noteRoom() {
    exhaustedSaid_ = false;
  }
  void sayRefused(const ControlSocket& socket, const std::string& cause);

 private:
  struct Unproven {
    ControlSocket socket;
    TimePoint since; // it was accepted
    Greeting greeting{};
    std::optional<SessionKey> key{}; // it has been challenged
    std::optional<Hello> hello{}; // it has proved itself: its descriptors lack
  };
  using Place = std::vector<Unproven>::const_iterator;
  Place replaceable(TimePoint now) const;
  bool accepting() const;
  void acceptFrom(Listener& listener);
  void refuseAll(Listener& listener);
  void tellExhausted(Unproven& handshake, const std::string& why);
  bool advance(Unproven& handshake); // true: finished with it
  bool step(Unproven& handshake);
  bool onGreeting(Unproven& handshake);
  bool onHello(Unproven& handshake);
  bool finish(Unproven& handshake, std::vector<UniqueFd> fds);

  const Self self_;
  const SecretOf secretOf_;
  const HandshakeLimits limits_ = HandshakeLimits::ofProcess();
  RefusalLog refusals_;
  Listener local_; // for processes of this user on this host
  std::optional<Listener> network_; // none: this host has no network
  std::vector<Unproven> unproven_; // the oldest first
  std::vector<Incoming> proven_;
  TimePoint acceptAgain_{};
  bool exhaustedSaid_ = false;
  bool crowdSaid_ = false;
};

} // namespace dlslime
