#include <algorithm>
#include <thread>

#include "core/log.h"
#include "core/random.h"
#include "engine/handshakes.h"
#include "engine/section.h"

// The side of a handshake that is connected to.

namespace dlslime {

namespace {
constexpr size_t kMostGuests = 256;
constexpr milliseconds kSilence{1000};
constexpr microseconds kDrainPause{50};
constexpr milliseconds kMostDraining{1100}; // a little more than a device may
} // namespace

// Who knocks while we are full waits in the listeners' queues: the oldest guest
// that has said nothing leaves first, if it has had time to speak. One that was
// answered counts on it, and would take our leaving for our death.
bool Handshakes::accepting() const {
  const auto now = Clock::now();
  if (now < acceptAgain_ || guests_.size() < kMostGuests) {
    return now >= acceptAgain_;
  }
  const auto oldest = std::find_if(guests_.begin(), guests_.end(), unanswered);
  return oldest != guests_.end() &&
      oldest->deadline - kHandshakeTime + kSilence <= now;
}

void Handshakes::acceptGuests(Listener& listener) {
  while (accepting()) {
    auto socket = listener.accept();
    if (!socket) {
      if (listener.exhausted()) {
        refuseAll(listener);
      }
      return;
    }
    if (guests_.size() >= kMostGuests) {
      // It is the likeliest to be nobody; those who know us speak at once.
      if (!std::exchange(crowdSaid_, true)) {
        logWarning("too many connections in the handshake: dropped the oldest");
      }
      guests_.erase(std::find_if(guests_.begin(), guests_.end(), unanswered));
    }
    guests_.push_back(
        {std::move(*socket), deadlineAfter(kHandshakeTime), {}, {}});
  }
}

// Of those that wait, the ones that can be told why nobody answers.
void Handshakes::refuseAll(Listener& listener) {
  acceptAgain_ = deadlineAfter(kAcceptPause);
  while (auto socket = listener.acceptToRefuse()) {
    tellExhausted(*socket, noDescriptorText());
  }
}

void Handshakes::tellExhausted(ControlSocket& socket, const std::string& why) {
  if (!std::exchange(exhaustedSaid_, true)) {
    logWarning("a peer can't connect: " + why);
  }
  try {
    // What is unread when a TCP socket is closed takes the answer with it.
    socket.receiveFrame();
  } catch (const Error& error) { // which is not read for its content
    logDebug(error.what());
  }
  try {
    const Welcome later{Verdict::kLater, "the peer says: " + why, {}};
    socket.sendFrame(encode(later), {});
  } catch (const Error& error) {
    logDebug(std::string("nobody waited to be told: ") + error.what());
  }
}

bool Handshakes::onGuest(Guest& guest) {
  if (guest.made) {
    return onConfirm(guest);
  }
  try {
    auto frame = guest.socket.receiveFrame();
    if (!frame) {
      return false;
    }
    const auto hello = decodeHello(frame->bytes);
    if (hello.route == kSideRoute) {
      bringSideSocket(guest, hello);
      return true;
    }
    const auto welcome = answer(guest, std::move(*frame), hello);
    if (welcome.verdict == Verdict::kAccepted) {
      return false; // it has been told
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
    if (statusOf(error).code() == ErrorCode::kExhausted) {
      tellExhausted(guest.socket, error.what());
    } else {
      sayRefused(guest, error.what());
    }
  }
  return true;
}

// Once for each host, or process of this one, and cause: it may come again at
// once, and for ever.
void Handshakes::sayRefused(const Guest& guest, const std::string& cause) {
  if (refusedOnes_.size() < kMostRefusedOnes &&
      refusedOnes_.insert(guest.socket.peerHost() + " " + cause).second) {
    logWarning(
        "a connection from " + guest.socket.peerText() +
        " was refused: " + cause);
  } else {
    logDebug("a connection was refused: " + cause);
  }
}

// The answer was taken: either the connection works, or it comes to nothing.
bool Handshakes::onConfirm(Guest& guest) {
  auto& made = *guest.made;
  const auto key = made.key;
  try {
    const auto frame = guest.socket.receiveFrame();
    if (!frame) {
      return false;
    }
    const auto confirm = decodeConfirm(frame->bytes);
    if (confirm.nonce != guest.nonce) {
      throw Error(ErrorCode::kPeerFailed, "it confirms another connection");
    }
    if (made.probe) {
      throw Error(ErrorCode::kPeerFailed, "it confirms a mere question");
    }
    if (!confirm.problem.empty()) {
      throw Error(ErrorCode::kPeerFailed, "the peer says: " + confirm.problem);
    }
    made.connection->confirm(confirm.blob);
    install(std::move(made), std::move(guest.socket));
  } catch (const std::exception& error) {
    if (made.probe) {
      logDebug(error.what());
    } else {
      logInfo(
          "a connection with pid " + std::to_string(made.peer.identity.pid) +
          " came to nothing: " + error.what());
      noteFailure(key, {Status(ErrorCode::kPeerFailed, error.what()), false});
    }
  }
  return true;
}

Welcome Handshakes::answer(
    Guest& guest,
    ControlSocket::Frame frame,
    const Hello& hello) {
  if (!forUs(hello)) {
    sayRefused(guest, "it does not know this process's token");
    return {
        Verdict::kStranger,
        "it is not for this process, or lacks its token",
        {}};
  }
  const ChannelKey key{hello.self.identity.instance, hello.policy};
  if (!hello.probe) {
    if (ownAttemptGoesOn(key)) {
      return {Verdict::kCrossed, "", {}};
    }
    if (auto refusal = answerReplacing(hello)) {
      return *refusal;
    }
  }
  auto* const transport = state_.transports.find(hello.route);
  if (transport == nullptr) {
    return {Verdict::kRefused, "the peer has no such route", {}};
  }
  const auto reachable = transport->reaches(state_.self, hello.self.identity);
  if (!reachable.ok()) {
    return {Verdict::kRefused, "the peer says: " + reachable.message(), {}};
  }
  return connectGuest(guest, std::move(frame), hello, *transport);
}

bool Handshakes::forUs(const Hello& hello) const {
  return hello.targetInstance == state_.self.instance &&
      equalSecrets(hello.token, state_.token);
}

// Of a connection that this end has accepted.
void Handshakes::bringSideSocket(Guest& guest, const Hello& hello) {
  if (!forUs(hello)) {
    throw Error(
        ErrorCode::kPeerFailed, "it does not know this process's token");
  }
  if (!sideSockets_->bring(hello.nonce, guest.socket.release())) {
    throw Error(ErrorCode::kPeerFailed, "its second socket is not expected");
  }
}

// Both ends connect at the same time: the one with the smaller instance number
// goes on, so exactly one connection comes of it. But only once it has got
// through: this peer's has.
bool Handshakes::ownAttemptGoesOn(const ChannelKey& key) const {
  const auto own = attempts_.find(key);
  return own != attempts_.end() && !own->second.request.than &&
      own->second.socket && !own->second.connecting &&
      state_.self.instance < key.instance;
}

// What there is of a connection already decides; nothing: a new one is made.
std::optional<Welcome> Handshakes::answerReplacing(const Hello& hello) {
  const ChannelKey key{hello.self.identity.instance, hello.policy};
  std::shared_ptr<PeerChannel> channel;
  {
    const Section section(state_);
    channel = state_.channels.find(key);
    if (hello.replaces == 0) {
      return channel ? std::optional(Welcome{Verdict::kCrossed, "", {}, 0})
                     : std::nullopt;
    }
    const Status why(
        ErrorCode::kTransportFailed, "the other end needs another one");
    if (channel && hello.replaces < channel->generation()) {
      return Welcome{Verdict::kCrossed, "", {}, 0}; // it is replaced already
    }
    if (!channel) {
      return Welcome{
          Verdict::kStranger,
          "the connection that is to be replaced is given up",
          {},
          0};
    }
    if (channel->open() && !channel->handOver(why)) {
      return Welcome{Verdict::kRefused, "it can't be replaced now", {}, 0};
    }
  }
  // What came by the old one counts, and takes microseconds to see; or longer
  // by Gloo: then the peer asks again.
  for (const auto end = deadlineAfter(kMostDraining); Clock::now() < end;) {
    {
      const Section section(state_);
      channel->poll();
      state_.buryFailed();
    }
    state_.closeGraveyard();
    {
      const Section section(state_);
      if (!channel->alive()) {
        return Welcome{Verdict::kStranger, channel->failure().message(), {}, 0};
      }
      if (channel->awaitsConnection()) {
        state_.channels.dropSocket(*channel);
        return std::nullopt;
      }
    }
    std::this_thread::sleep_for(kDrainPause);
  }
  return Welcome{
      Verdict::kRefused, "what came by the old one is not all read", {}, 0};
}

// The group that needs the connection; or null, which says little: the peer may
// have read our record of an earlier life. A connection that takes the place of
// another is for any group that has used that.
std::shared_ptr<Group> Handshakes::groupOf(const Hello& hello) {
  const Section section(state_);
  if (auto group = state_.membership.find(hello.group)) {
    return group;
  }
  const auto replaced = hello.replaces == 0
      ? nullptr
      : state_.channels.find({hello.self.identity.instance, hello.policy});
  int rank = 0;
  return replaced ? state_.groupUsing(*replaced, rank) : nullptr;
}

Transport::Context Handshakes::contextOf(const Hello& hello) {
  Transport::Context context;
  context.nonce = hello.nonce;
  context.peer = hello.self.identity;
  sideSockets_->expect(hello.nonce);
  context.sideSocket = [all = sideSockets_,
                        nonce = hello.nonce](TimePoint deadline) {
    return all->take(nonce, deadline);
  };
  return context;
}

Welcome Handshakes::connectGuest(
    Guest& guest,
    ControlSocket::Frame frame,
    const Hello& hello,
    Transport& transport) {
  const bool last = isFallback(transport, hello.policy);
  const auto group = groupOf(hello);
  if (!group && needsGroup(transport)) {
    return {Verdict::kNotJoined, kNotJoinedText, {}};
  }
  auto context = contextOf(hello);
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
        transport.accept(context, {hello.blob, std::move(frame.fds)}, reply);
    if (last) { // the end that began tells the user
      tellFallback(
          FallbackPolicy::kAllow,
          "pid " + std::to_string(context.peer.pid),
          rejected);
    }
  } catch (const std::exception& error) {
    if (statusOf(error).code() == ErrorCode::kExhausted) {
      throw; // it comes again
    }
    return {
        Verdict::kRefused, std::string("the peer says: ") + error.what(), {}};
  }
  const ChannelKey key{hello.self.identity.instance, hello.policy};
  if (!hello.probe) {
    dropOthers(key);
  }
  Welcome welcome{Verdict::kAccepted, "", std::move(reply.blob), lastSeen(key)};
  guest.socket.sendFrame(encode(welcome), reply.fds);
  guest.nonce = hello.nonce;
  guest.made = Made{
      key,
      hello.self,
      std::move(connection),
      std::move(rejected),
      hello.replaces,
      hello.lastSeen,
      hello.probe,
      false};
  guest.deadline = deadlineAfter(kHandshakeTime);
  return welcome;
}

// Our own attempt, and an earlier one of the same peer.
void Handshakes::dropOthers(const ChannelKey& key) {
  drop(key);
  for (auto& other : guests_) {
    if (other.made && !other.made->probe && other.made->key == key) {
      other.made.reset();
      other.deadline = Clock::now();
    }
  }
}

uint64_t Handshakes::lastSeen(const ChannelKey& key) {
  const Section section(state_);
  const auto channel = state_.channels.find(key);
  return channel ? channel->lastSeen() : 0;
}

} // namespace dlslime
