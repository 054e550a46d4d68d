#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <poll.h>

#include "engine/bootstrap/handshake_limits.h"
#include "engine/bootstrap/listener.h"
#include "engine/bootstrap/refusal_log.h"
#include "engine/bootstrap/session_key.h"

namespace dlslime {

// Connection from a peer that has proved to know the secret, with the peer's
// request.
struct Incoming {
  ControlSocket socket;
  SessionKey key;
  Greeting greeting;
  Hello hello;
  std::vector<UniqueFd> fds; // as many as announced by the hello

  // Sends a record of the handshake, sealed. Throws Error.
  void answer(ByteSpan record) {
    socket.sendFrame(key.seal(SessionKey::End::kAcceptor, 0, record));
  }
};

// Answers every connection to this process until the peer has proved to know
// the secret (docs/protocol.md, "Connecting two processes"). Any process may
// connect: before the proof, a connection costs at most a descriptor, a second,
// and a kilobyte, or 64 KiB from a peer that knows this process's instance
// number. Wire-up thread only.
class Acceptor {
 public:
  struct Self {
    PeerIdentity identity;
    std::shared_ptr<const RendezvousDirectory> directory; // or null
    std::string interfaces; // selected for the TCP listener
    std::string interfacesSetting; // variable holding the selection, for texts
  };
  // Returns the secret of the greeting's kind, shared by this process and the
  // greeting process; empty: none.
  using SecretOf = std::function<Bytes(const Greeting& greeting)>;
  Acceptor(Self self, SecretOf secretOf);

  const std::string& socketName() const {
    return local_.names().front();
  }
  std::vector<std::string> addresses() const {
    return network_ ? network_->names() : std::vector<std::string>();
  }
  void addTo(std::vector<pollfd>& fds);
  // Serves the descriptors in `heard`, found ready by poll().
  void onPoll(const std::set<int>& heard);
  // Returns the connections proven since the last call.
  std::vector<Incoming> take() {
    return std::exchange(proven_, {});
  }
  TimePoint nextDeadline() const;
  // Drops connections unproven for kProofTime at `looked`, the time up to which
  // onPoll() has handled all arrivals.
  void expire(TimePoint looked);
  // Notes that descriptors are free again, so the next shortage is worth a line
  // in the log.
  void noteRoom() {
    exhaustedSaid_ = false;
  }
  void sayRefused(const ControlSocket& socket, const std::string& cause);

 private:
  void sayOtherUser(const ControlSocket& socket);
  struct Unproven {
    ControlSocket socket;
    TimePoint since; // time of accept()
    Greeting greeting{};
    std::optional<SessionKey> key{}; // set once the peer has been challenged
    std::optional<Hello> hello{}; // set after the proof, until descriptors come
  };
  std::optional<size_t> replaceable(TimePoint now) const;
  std::vector<Listener*> listeners();
  bool accepting() const;
  void acceptFrom(Listener& listener);
  void refuseAll(Listener& listener);
  void makeRoom();
  void tellExhausted(Unproven& handshake, const std::string& why);
  void tellCrowded(Unproven& handshake);
  static void tellLater(Unproven& handshake, const std::string& why);
  bool advance(Unproven& handshake); // true: finished
  bool step(Unproven& handshake);
  bool onGreeting(Unproven& handshake);
  bool onHello(Unproven& handshake);
  bool finish(Unproven& handshake, std::vector<UniqueFd> fds);

  const Self self_;
  const SecretOf secretOf_;
  const HandshakeLimits limits_ = HandshakeLimits::ofProcess();
  RefusalLog refusals_;
  Listener local_; // for processes of this user on this host
  // For processes of this user in other containers; empty: no directory is set.
  std::optional<Listener> inDirectory_;
  std::optional<Listener> network_; // empty: the host has no usable network
  std::vector<Unproven> unproven_; // oldest first
  std::vector<Incoming> proven_;
  TimePoint acceptAgain_{};
  bool exhaustedSaid_ = false;
  bool crowdSaid_ = false;
};

} // namespace dlslime
