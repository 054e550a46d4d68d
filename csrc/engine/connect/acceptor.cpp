#include "engine/connect/acceptor.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/random.h"

namespace dlslime {

namespace {
constexpr size_t kMostGreetingBytes = 1024;
constexpr int kMostAccepted = 64; // per round, since further work waits
// Pause in accepting when unproven connections are too many, or after an error
// of accept().
constexpr milliseconds kAcceptPause{100};
} // namespace

Acceptor::Acceptor(Self self, SecretOf secretOf)
    : self_(std::move(self)),
      secretOf_(std::move(secretOf)),
      local_(Listener::onThisHost(
          [this](const ControlSocket& socket) { sayOtherUser(socket); })) {
  if (self_.directory) {
    inDirectory_.emplace(Listener::inDirectory(
        self_.directory, socketName(), [this](const ControlSocket& socket) {
          sayOtherUser(socket);
        }));
  }
  try {
    network_.emplace(
        Listener::onTheNetwork(self_.interfaces, self_.interfacesSetting));
  } catch (const Error& error) {
    const auto what =
        std::string("other hosts can't connect to this process: ") +
        error.what();
    // A host without a network rarely needs the TCP listener, unless the user
    // has selected interfaces.
    self_.interfaces.empty() ? logInfo(what) : logWarning(what);
  }
}

std::vector<Listener*> Acceptor::listeners() {
  std::vector<Listener*> all{&local_};
  for (auto* const listener : {&inDirectory_, &network_}) {
    if (*listener) {
      all.push_back(&**listener);
    }
  }
  return all;
}

void Acceptor::addTo(std::vector<pollfd>& fds) {
  if (accepting()) {
    for (const auto* const listener : listeners()) {
      fds.push_back({listener->fd(), POLLIN, 0});
    }
  }
  for (const auto& handshake : unproven_) {
    fds.push_back({handshake.socket.fd(), POLLIN, 0});
  }
}

void Acceptor::onPoll(const std::set<int>& heard) {
  std::erase_if(unproven_, [&](Unproven& handshake) {
    return heard.contains(handshake.socket.fd()) && advance(handshake);
  });
  for (auto* const listener : listeners()) {
    if (heard.contains(listener->fd())) {
      acceptFrom(*listener);
    }
  }
}

TimePoint Acceptor::nextDeadline() const {
  auto next = accepting() ? never() : deadlineAfter(kAcceptPause);
  if (!unproven_.empty()) {
    next =
        std::min(next, unproven_.front().since + HandshakeLimits::kProofTime);
  }
  return std::min(next, refusals_.next());
}

void Acceptor::expire(TimePoint looked) {
  std::erase_if(unproven_, [looked](const Unproven& handshake) {
    return handshake.since + HandshakeLimits::kProofTime <= looked;
  });
  refusals_.tell(looked);
}

// Returns the connection to drop for a new connection: the oldest that has not
// named this process, since a genuine peer does so soon; else the oldest of
// all, if older than kSafeTime.
std::optional<size_t> Acceptor::replaceable(TimePoint now) const {
  for (size_t i = 0; i < unproven_.size(); ++i) {
    if (!unproven_[i].key) {
      return i;
    }
  }
  const bool old = !unproven_.empty() &&
      unproven_.front().since + HandshakeLimits::kSafeTime <= now;
  return old ? std::optional<size_t>(0) : std::nullopt;
}

// Returns whether to accept now; meanwhile, new connections wait in the
// listeners' queues.
bool Acceptor::accepting() const {
  const auto now = Clock::now();
  return now >= acceptAgain_ &&
      (unproven_.size() < limits_.unproven || replaceable(now).has_value());
}

void Acceptor::acceptFrom(Listener& listener) {
  for (int i = 0; i < kMostAccepted && accepting(); ++i) {
    auto socket = listener.accept();
    if (!socket) {
      if (listener.exhausted()) {
        refuseAll(listener);
      } else if (listener.failing()) {
        acceptAgain_ = deadlineAfter(kAcceptPause);
      }
      return;
    }
    makeRoom();
    unproven_.push_back({std::move(*socket), Clock::now()});
    if (advance(unproven_.back())) {
      unproven_.pop_back();
    }
  }
}

// Drops a connection if there are too many, after serving the connection once
// more: even a genuine peer may be delayed between connecting and greeting, so
// bytes may have come since the last poll(). Drops none when all turn out to be
// young and to have named this process.
void Acceptor::makeRoom() {
  while (unproven_.size() >= limits_.unproven) {
    const auto place = replaceable(Clock::now());
    if (!place) {
      return;
    }
    auto& oldest = unproven_[*place];
    const bool named = oldest.key.has_value();
    const bool over = advance(oldest);
    if (!over && !named && oldest.key) {
      continue; // has named this process just now
    }
    if (!over) {
      tellCrowded(oldest);
    }
    unproven_.erase(unproven_.begin() + static_cast<ptrdiff_t>(*place));
  }
}

// Tells waiting peers, as far as possible, that this process has no free
// descriptor.
void Acceptor::refuseAll(Listener& listener) {
  acceptAgain_ = deadlineAfter(kAcceptPause);
  for (int i = 0; i < kMostAccepted; ++i) {
    auto socket = listener.acceptToRefuse();
    if (!socket) {
      return;
    }
    Unproven handshake{std::move(*socket), {}};
    tellExhausted(handshake, noDescriptorText());
  }
}

void Acceptor::tellExhausted(Unproven& handshake, const std::string& why) {
  if (!std::exchange(exhaustedSaid_, true)) {
    logWarning("a peer can't connect: " + why);
  }
  tellLater(handshake, why);
}

void Acceptor::tellCrowded(Unproven& handshake) {
  const auto why = std::to_string(limits_.unproven) +
      " connections have not proved themselves, and no more are kept";
  if (!std::exchange(crowdSaid_, true)) {
    logWarning(why + ": the oldest are dropped");
  }
  // A peer that has been challenged awaits a sealed answer, but has not proved
  // to know the secret.
  if (!handshake.key || handshake.hello) {
    tellLater(handshake, why);
  }
}

// Asks the peer to try again.
void Acceptor::tellLater(Unproven& handshake, const std::string& why) {
  const auto text = "the peer says: " + why;
  try {
    if (handshake.hello) {
      const auto later = encode(Welcome{Verdict::kLater, text, {}});
      handshake.socket.sendFrame(
          handshake.key->seal(SessionKey::End::kAcceptor, 0, later));
      return;
    }
    // Closing a TCP socket with unread bytes would discard the answer, so the
    // greeting is read first.
    handshake.socket.receiveFrame(kMostGreetingBytes);
  } catch (const Error& error) { // the greeting's content does not matter
    logDebug(error.what());
  }
  try {
    handshake.socket.sendFrame(
        encode(Challenge{Verdict::kLater, text, {}, {}}));
  } catch (const Error& error) {
    logDebug(std::string("no process waited for the refusal: ") + error.what());
  }
}

void Acceptor::sayRefused(
    const ControlSocket& socket,
    const std::string& cause) {
  refusals_.note(socket.peerSource(), socket.peerText(), cause);
}

void Acceptor::sayOtherUser(const ControlSocket& socket) {
  sayRefused(
      socket,
      "only processes of uid " + std::to_string(self_.identity.uid) +
          " may connect on this host");
}

bool Acceptor::advance(Unproven& handshake) {
  try {
    return step(handshake);
  } catch (const std::exception& error) {
    // Any process may connect, so an error is only logged and, in a shortage,
    // told to the peer. A peer that has meanwhile accepted this process's hello
    // hangs up in silence after the greeting, or over TCP even before, and is
    // no reason for a warning.
    const bool greeted = handshake.key && !handshake.hello;
    if ((handshake.socket.silent() && !handshake.socket.local()) ||
        (greeted && handshake.socket.ended())) {
      logDebug(std::string("a connection ended in silence: ") + error.what());
    } else if (statusOf(error).code() == ErrorCode::kExhausted) {
      tellExhausted(handshake, error.what());
    } else {
      sayRefused(handshake.socket, error.what());
    }
  }
  return true;
}

bool Acceptor::step(Unproven& handshake) {
  if (!handshake.key) {
    return onGreeting(handshake);
  }
  if (!handshake.hello) {
    return onHello(handshake);
  }
  auto fds = handshake.socket.receiveDescriptors(handshake.hello->descriptors);
  return fds && finish(handshake, std::move(*fds));
}

// Proves to the peer that this process is the intended acceptor, and asks for
// the peer's proof.
bool Acceptor::onGreeting(Unproven& handshake) {
  const auto frame = handshake.socket.receiveFrame(kMostGreetingBytes);
  if (!frame) {
    return false;
  }
  handshake.greeting = decodeGreeting(*frame);
  const auto& greeting = handshake.greeting;
  Challenge challenge;
  if (greeting.target != self_.identity.instance) {
    challenge.text = "the connection was meant for a different process";
    sayRefused(
        handshake.socket, "the connection was meant for a different process");
  } else if (greeting.self == self_.identity.instance) {
    throw Error(ErrorCode::kPeerFailed, "the peer claims to be this process");
  } else if (const auto secret = secretOf_(greeting); secret.empty()) {
    challenge.text = "the connection that is to be replaced is given up";
  } else {
    challenge.verdict = Verdict::kAccepted;
    challenge.nonce = randomBytes(kNonceBytes);
    handshake.key.emplace(secret, greeting, challenge.nonce);
    challenge.proof = handshake.key->acceptorProof();
  }
  handshake.socket.sendFrame(encode(challenge));
  return challenge.verdict != Verdict::kAccepted;
}

bool Acceptor::onHello(Unproven& handshake) {
  const auto frame = handshake.socket.receiveFrame();
  if (!frame) {
    return false;
  }
  auto hello =
      decodeHello(handshake.key->open(SessionKey::End::kInitiator, 0, *frame));
  const bool ofPair = handshake.greeting.secret == SecretKind::kPair;
  const bool asksAsPair = hello.probe || hello.replaces != 0;
  if (hello.self.instance != handshake.greeting.self ||
      (asksAsPair && !ofPair)) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer's hello contradicts the peer's greeting");
  }
  if (hello.descriptors > 0 && !handshake.socket.local()) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer announces descriptors over TCP, which carries none");
  }
  handshake.hello = std::move(hello);
  return handshake.hello->descriptors > 0 ? step(handshake)
                                          : finish(handshake, {});
}

bool Acceptor::finish(Unproven& handshake, std::vector<UniqueFd> fds) {
  proven_.push_back(
      {std::move(handshake.socket),
       *handshake.key,
       std::move(handshake.greeting),
       std::move(*handshake.hello),
       std::move(fds)});
  return true;
}

} // namespace dlslime
