#include "core/log.h"
#include "core/random.h"
#include "engine/handshakes.h"
#include "engine/section.h"

// The side of a handshake that is connected to.

namespace dlslime {

namespace {
constexpr size_t kMostGuests = 256;
constexpr milliseconds kSilence{1000};
} // namespace

// Who knocks while we are full waits in the listeners' queues: the oldest guest
// leaves first, if it has had time to speak.
bool Handshakes::accepting() const {
  const auto now = Clock::now();
  return now >= acceptAgain_ &&
      (guests_.size() < kMostGuests ||
       guests_.front().deadline - kHandshakeTime + kSilence <= now);
}

void Handshakes::acceptGuests(Listener& listener) {
  while (accepting()) {
    auto socket = listener.accept();
    if (!socket) {
      if (listener.exhausted()) {
        logWarning("a peer can't connect: this process has no free descriptor");
        acceptAgain_ = deadlineAfter(kAcceptPause);
      }
      return;
    }
    if (guests_.size() >= kMostGuests) {
      // The one that has said nothing for the longest is the likeliest to be
      // nobody; those who know us speak at once.
      logWarning("too many connections in the handshake: dropped the oldest");
      guests_.erase(guests_.begin());
    }
    guests_.push_back({std::move(*socket), deadlineAfter(kHandshakeTime)});
  }
}

bool Handshakes::onGuest(Guest& guest) {
  try {
    auto frame = guest.socket.receiveFrame();
    if (!frame) {
      return false;
    }
    Hello hello = decodeHello(frame->bytes);
    const auto welcome = answer(guest, std::move(*frame), std::move(hello));
    if (welcome.verdict == Verdict::kAccepted) {
      return true;
    }
    try {
      guest.socket.sendFrame(encode(welcome), {});
    } catch (const Error& error) {
      // It has given up already, most often because we have connected to it.
      logDebug(std::string("an answer was not wanted: ") + error.what());
    }
  } catch (const std::exception& error) {
    // Anybody may knock here: say so, and nothing else happens. Peers of other
    // hosts that have accepted our hello meanwhile leave without a word.
    if (guest.socket.silent() && !guest.socket.local()) {
      logDebug(std::string("a connection ended in silence: ") + error.what());
      return true;
    }
    logWarning(
        "a connection from " + guest.socket.peerText() +
        " was refused: " + error.what());
  }
  return true;
}

Welcome
Handshakes::answer(Guest& guest, ControlSocket::Frame frame, Hello hello) {
  const bool forUs = hello.targetInstance == state_.self.instance &&
      equalSecrets(hello.token, state_.token);
  if (!forUs) {
    logWarning(
        "a connection from " + guest.socket.peerText() +
        " was refused: it does not know this process's token");
    return {
        Verdict::kStranger,
        "it is not for this process, or lacks its token",
        {}};
  }
  const ChannelKey key{hello.self.instance, hello.policy};
  const auto own = attempts_.find(key);
  bool connected = false;
  {
    const Section section(state_);
    connected = state_.channels.find(key) != nullptr;
  }
  // Both ends connect at the same time: the one with the smaller instance
  // number goes on, so exactly one connection comes of it.
  // But only once it has got through: this peer's has.
  const bool ownGoesOn = own != attempts_.end() && own->second.socket &&
      !own->second.connecting && state_.self.instance < hello.self.instance;
  if (connected || ownGoesOn) {
    return {Verdict::kCrossed, "", {}};
  }
  auto* const transport = state_.transports.find(hello.route);
  if (transport == nullptr) {
    return {Verdict::kRefused, "the peer has no such route", {}};
  }
  const auto reachable = transport->reaches(state_.self, hello.self);
  if (!reachable.ok()) {
    return {Verdict::kRefused, "the peer says: " + reachable.message(), {}};
  }
  return connectGuest(guest, std::move(frame), hello, *transport);
}

Welcome Handshakes::connectGuest(
    Guest& guest,
    ControlSocket::Frame frame,
    const Hello& hello,
    Transport& transport) {
  Transport::Context context;
  context.nonce = hello.nonce;
  context.peer = hello.self;
  auto fallback = state_.config.fallback;
  {
    const Section section(state_);
    if (const auto group = state_.membership.find(hello.group)) {
      context.carrierSource = group->options().carrierSource;
      fallback = group->options().fallback;
    }
  }
  std::vector<RejectedRoute> rejected;
  rejected.reserve(hello.rejected.size());
  for (const auto& [route, reason] : hello.rejected) {
    rejected.push_back({route, reason});
  }
  Offer reply;
  std::unique_ptr<Connection> connection;
  try {
    if (isFallback(transport, hello.policy)) {
      // The end that began has told the user already.
      requireFallback(
          fallback == FallbackPolicy::kWarn ? FallbackPolicy::kAllow : fallback,
          "pid " + std::to_string(hello.self.pid),
          rejected);
    }
    connection =
        transport.accept(context, {hello.blob, std::move(frame.fds)}, reply);
  } catch (const std::exception& error) {
    return {
        Verdict::kRefused, std::string("the peer says: ") + error.what(), {}};
  }
  const ChannelKey key{hello.self.instance, hello.policy};
  const auto own = attempts_.find(key);
  if (own != attempts_.end()) {
    if (own->second.socket) {
      own->second.transport->withdraw(own->second.context);
    }
    attempts_.erase(own);
  }
  Welcome welcome{Verdict::kAccepted, "", std::move(reply.blob)};
  guest.socket.sendFrame(encode(welcome), reply.fds);
  install(
      key,
      hello.self,
      std::move(connection),
      std::move(guest.socket),
      std::move(rejected));
  return welcome;
}

} // namespace dlslime
