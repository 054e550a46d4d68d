#include "engine/handshakes.h"

#include <algorithm>

#include "core/log.h"
#include "core/random.h"
#include "engine/section.h"

namespace dlslime {

namespace {
constexpr size_t kMostFailures = 1024;
} // namespace

void Handshakes::begin(Request request) {
  const ChannelKey key = request.key;
  failures_.erase(key);
  if (key.instance == state_.self.instance) {
    connectSelf(request);
    return;
  }
  Attempt attempt;
  attempt.choice = chooseRoutes(
      state_.transports, key.policy, state_.self, request.record.identity);
  attempt.request = std::move(request);
  attempt.context.carrierSource = attempt.request.carrierSource;
  attempt.context.peer = attempt.request.record.identity;
  attempt.context.initiator = true;
  auto& placed = attempts_.emplace(key, std::move(attempt)).first->second;
  try {
    if (!tryNext(placed)) {
      giveUp(
          key,
          Status(
              ErrorCode::kUnavailable,
              "there is no route to its process: " +
                  describeRejected(placed.choice.rejected)));
    }
  } catch (const Error& error) {
    giveUp(key, error.status());
  }
}

void Handshakes::connectSelf(const Request& request) {
  const Section section(state_);
  auto channel = state_.makeChannel(request.record.identity);
  channel->connected(Transports::makeSelfConnection(), {});
  state_.channels.add(request.key, std::move(channel), std::nullopt);
}

Status Handshakes::failure(const ChannelKey& key) const {
  const auto found = failures_.find(key);
  return found == failures_.end() ? Status() : found->second;
}

void Handshakes::giveUp(const ChannelKey& key, Status why) {
  attempts_.erase(key);
  if (failures_.size() > kMostFailures) {
    failures_.clear();
  }
  failures_[key] = std::move(why);
}

std::string Handshakes::describePeer(const Attempt& attempt) {
  const auto& peer = attempt.context.peer;
  return "rank " + std::to_string(attempt.request.rank) + " (pid " +
      std::to_string(peer.pid) + " on " + peer.host + ")";
}

bool Handshakes::tryNext(Attempt& attempt) {
  while (attempt.next < attempt.choice.candidates.size()) {
    auto* const transport = attempt.choice.candidates[attempt.next++];
    if (isFallback(*transport, attempt.request.key.policy)) {
      requireFallback(
          attempt.request.fallback,
          describePeer(attempt),
          attempt.choice.rejected);
    }
    try {
      sendHello(attempt, *transport);
      return true;
    } catch (const Error& error) {
      if (error.status().code() == ErrorCode::kPeerFailed) {
        throw; // nobody there: no route will change that
      }
      attempt.choice.rejected.push_back(
          {std::string(transport->name()), error.what()});
    }
  }
  return false;
}

void Handshakes::sendHello(Attempt& attempt, Transport& transport) {
  const auto& record = attempt.request.record;
  auto socket = ControlSocket::connectTo(record.socketName);
  const auto other = socket.credentials();
  if (other.uid != record.identity.uid) {
    throw Error(
        ErrorCode::kPeerFailed,
        "its socket belongs to uid " + std::to_string(other.uid) +
            ", the address record to uid " +
            std::to_string(record.identity.uid));
  }
  attempt.context.nonce = hex(randomBytes(8));
  Offer offer = transport.offer(attempt.context);
  Hello hello;
  hello.targetInstance = record.identity.instance;
  hello.token = record.token;
  hello.self = state_.self;
  hello.nonce = attempt.context.nonce;
  hello.policy = attempt.request.key.policy;
  hello.group = record.group;
  hello.route = transport.name();
  hello.blob = std::move(offer.blob);
  for (const auto& entry : attempt.choice.rejected) {
    hello.rejected.emplace_back(entry.route, entry.reason);
  }
  socket.sendFrame(encode(hello), offer.fds);
  attempt.socket = std::move(socket);
  attempt.deadline = deadlineAfter(kHandshakeTime);
}

void Handshakes::onWelcome(const ChannelKey& key) {
  auto& attempt = attempts_.at(key);
  try {
    auto frame = attempt.socket->receiveFrame();
    if (!frame) {
      return;
    }
    if (settle(attempt, decodeWelcome(frame->bytes), *frame)) {
      attempts_.erase(key);
    }
  } catch (const Error& error) {
    if (auto* const used = attempt.choice.candidates.at(attempt.next - 1)) {
      used->withdraw(attempt.context);
    }
    giveUp(key, error.status());
  }
}

// True: this attempt is over, well. Throws: it has failed.
bool Handshakes::settle(
    Attempt& attempt,
    Welcome welcome,
    ControlSocket::Frame& frame) {
  auto& transport = *attempt.choice.candidates.at(attempt.next - 1);
  switch (welcome.verdict) {
    case Verdict::kAccepted: {
      auto connection = transport.finish(
          attempt.context, {std::move(welcome.blob), std::move(frame.fds)});
      install(
          attempt.request.key,
          attempt.context.peer,
          std::move(connection),
          std::move(*attempt.socket),
          std::move(attempt.choice.rejected));
      return true;
    }
    case Verdict::kRefused:
      transport.withdraw(attempt.context);
      attempt.choice.rejected.push_back(
          {std::string(transport.name()), welcome.text});
      if (!tryNext(attempt)) {
        throw Error(
            ErrorCode::kUnavailable,
            "no route works: " + describeRejected(attempt.choice.rejected));
      }
      return false;
    case Verdict::kCrossed:
      transport.withdraw(attempt.context);
      attempt.socket.reset();
      return false;
    case Verdict::kStranger:
      break;
  }
  throw Error(ErrorCode::kPeerFailed, "it refuses us: " + welcome.text);
}

void Handshakes::install(
    const ChannelKey& key,
    const PeerIdentity& peer,
    std::unique_ptr<Connection> connection,
    ControlSocket socket,
    std::vector<RejectedRoute> rejected) {
  const Section section(state_);
  auto channel = state_.makeChannel(peer);
  logInfo(
      "connected to pid " + std::to_string(peer.pid) + " on " + peer.host +
      " by " + std::string(connection->route()) + "/" +
      std::string(connection->copyName()));
  channel->connected(std::move(connection), std::move(rejected));
  state_.channels.add(key, std::move(channel), std::move(socket));
  // The peer may have sent, and rung, before there was a channel to look at.
  state_.sleeper.kick();
}

void Handshakes::addTo(std::vector<pollfd>& fds) const {
  fds.push_back({listener_.fd(), POLLIN, 0});
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.socket) {
      fds.push_back({attempt.socket->fd(), POLLIN, 0});
    }
  }
  for (const auto& guest : guests_) {
    fds.push_back({guest.socket.fd(), POLLIN, 0});
  }
}

void Handshakes::onPoll(const std::vector<pollfd>& fds) {
  const auto readable = [&](int fd) {
    return std::any_of(fds.begin(), fds.end(), [fd](const pollfd& entry) {
      return entry.fd == fd && entry.revents != 0;
    });
  };
  std::vector<ChannelKey> answered;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.socket && readable(attempt.socket->fd())) {
      answered.push_back(key);
    }
  }
  // Answers first: a crossing hello must find a connection that is complete.
  for (const auto& key : answered) {
    onWelcome(key);
  }
  std::erase_if(guests_, [&](Guest& guest) {
    return readable(guest.socket.fd()) && onGuest(guest);
  });
  if (readable(listener_.fd())) {
    acceptGuests();
  }
}

TimePoint Handshakes::nextDeadline() const {
  auto next = never();
  for (const auto& [key, attempt] : attempts_) {
    next = std::min(next, attempt.deadline);
  }
  for (const auto& guest : guests_) {
    next = std::min(next, guest.deadline);
  }
  return next;
}

void Handshakes::expire() {
  const auto now = Clock::now();
  std::vector<ChannelKey> late;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.deadline <= now) {
      late.push_back(key);
    }
  }
  for (const auto& key : late) {
    auto& attempt = attempts_.at(key);
    attempt.choice.candidates.at(attempt.next - 1)->withdraw(attempt.context);
    giveUp(
        key,
        Status(
            ErrorCode::kPeerFailed,
            "its process accepts connections but has not answered for 10 s"));
  }
  std::erase_if(
      guests_, [now](const Guest& guest) { return guest.deadline <= now; });
}

} // namespace dlslime
