#include "engine/handshakes.h"

#include <algorithm>

#include "core/log.h"
#include "core/random.h"
#include "engine/section.h"

namespace dlslime {

namespace {
constexpr size_t kMostFailures = 1024;

// Nothing that goes wrong with one peer may end this process.
Status statusOf(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? ours->status()
                         : Status(ErrorCode::kTransportFailed, error.what());
}
} // namespace

Handshakes::Handshakes(EngineState& state) : state_(state) {
  const auto& wanted = state_.config.interfaces;
  try {
    network_.emplace(Listener::onTheNetwork(wanted));
  } catch (const Error& error) {
    const auto what =
        std::string("other hosts can't connect to this process: ") +
        error.what();
    // Without a network most often nobody needs one.
    wanted.empty() ? logInfo(what) : logWarning(what);
  }
}

void Handshakes::begin(Request request) {
  const ChannelKey key = request.key;
  failures_.erase(key);
  if (key.instance == state_.self.instance) {
    connectSelf(request);
    return;
  }
  Attempt attempt;
  attempt.options = chooseRoutes(
      state_.transports, key.policy, state_.self, request.record.identity);
  attempt.request = std::move(request);
  attempt.context.carrierSource = attempt.request.carrierSource;
  attempt.context.peer = attempt.request.record.identity;
  attempt.context.initiator = true;
  auto& placed = attempts_.emplace(key, std::move(attempt)).first->second;
  try {
    if (!tryNext(placed)) {
      fail(
          key,
          Status(
              ErrorCode::kUnavailable,
              "there is no route to its process: " +
                  describeRejected(placed.rejected)));
    }
  } catch (const std::exception& error) {
    fail(key, statusOf(error));
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

std::string Handshakes::describePeer(const Attempt& attempt) {
  const auto& peer = attempt.context.peer;
  return "rank " + std::to_string(attempt.request.rank) + " (pid " +
      std::to_string(peer.pid) + " on " + peer.host + ")";
}

bool Handshakes::tryNext(Attempt& attempt) {
  while (attempt.next < attempt.options.size()) {
    const auto& option = attempt.options[attempt.next++];
    attempt.transport = option.transport;
    if (attempt.transport == nullptr) {
      attempt.rejected.push_back({option.route, option.reason});
      continue;
    }
    if (isFallback(*attempt.transport, attempt.request.key.policy)) {
      requireFallback(
          attempt.request.fallback, describePeer(attempt), attempt.rejected);
    }
    try {
      makeHello(attempt, *attempt.transport);
    } catch (const Error& error) {
      attempt.rejected.push_back({option.route, error.what()});
      continue;
    }
    connect(attempt); // nobody there: no other route would change that
    return true;
  }
  return false;
}

void Handshakes::makeHello(Attempt& attempt, Transport& transport) {
  const auto& record = attempt.request.record;
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
  for (const auto& entry : attempt.rejected) {
    hello.rejected.emplace_back(entry.route, entry.reason);
  }
  attempt.hello = encode(hello);
  attempt.helloFds = std::move(offer.fds);
}

void Handshakes::onSocket(const ChannelKey& key) {
  auto& attempt = attempts_.at(key);
  try {
    if (attempt.connecting) {
      onConnected(attempt);
    } else {
      onWelcome(key);
    }
  } catch (const std::exception& error) {
    onProblem(key, statusOf(error));
  }
}

void Handshakes::onWelcome(const ChannelKey& key) {
  auto& attempt = attempts_.at(key);
  auto frame = attempt.socket->receiveFrame();
  if (frame && settle(attempt, decodeWelcome(frame->bytes), *frame)) {
    attempts_.erase(key);
  }
}

void Handshakes::fail(const ChannelKey& key, Status why) {
  const auto& attempt = attempts_.at(key);
  if (attempt.transport != nullptr) {
    attempt.transport->withdraw(attempt.context);
  }
  attempts_.erase(key);
  if (failures_.size() > kMostFailures) {
    failures_.clear();
  }
  failures_[key] = std::move(why);
}

void Handshakes::tryAnother(Attempt& attempt, const std::string& why) {
  attempt.transport->withdraw(attempt.context);
  attempt.rejected.push_back({std::string(attempt.transport->name()), why});
  if (!tryNext(attempt)) {
    throw Error(
        ErrorCode::kUnavailable,
        "no route works: " + describeRejected(attempt.rejected));
  }
}

// True: this attempt is over, well. Throws: it has failed.
bool Handshakes::settle(
    Attempt& attempt,
    Welcome welcome,
    ControlSocket::Frame& frame) {
  switch (welcome.verdict) {
    case Verdict::kAccepted: {
      std::unique_ptr<Connection> connection;
      try {
        connection = attempt.transport->finish(
            attempt.context, {std::move(welcome.blob), std::move(frame.fds)});
      } catch (const Error& error) { // the peer sees it by the socket's end
        tryAnother(attempt, error.what());
        return false;
      }
      install(
          attempt.request.key,
          attempt.context.peer,
          std::move(connection),
          std::move(*attempt.socket),
          std::move(attempt.rejected));
      return true;
    }
    case Verdict::kRefused:
      tryAnother(attempt, welcome.text);
      return false;
    case Verdict::kCrossed:
      attempt.transport->withdraw(attempt.context);
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
  if (accepting()) {
    fds.push_back({local_.fd(), POLLIN, 0});
    if (network_) {
      fds.push_back({network_->fd(), POLLIN, 0});
    }
  }
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.socket) {
      const short wanted = attempt.connecting ? POLLOUT : POLLIN;
      fds.push_back({attempt.socket->fd(), wanted, 0});
    }
  }
  for (const auto& guest : guests_) {
    fds.push_back({guest.socket.fd(), POLLIN, 0});
  }
}

void Handshakes::onPoll(const std::vector<pollfd>& fds) {
  const auto ready = [&](int fd) {
    return std::any_of(fds.begin(), fds.end(), [fd](const pollfd& entry) {
      return entry.fd == fd && entry.revents != 0;
    });
  };
  std::vector<ChannelKey> answered;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.socket && ready(attempt.socket->fd())) {
      answered.push_back(key);
    }
  }
  // Answers first: a crossing hello must find a connection that is complete.
  for (const auto& key : answered) {
    onSocket(key);
  }
  std::erase_if(guests_, [&](Guest& guest) {
    return ready(guest.socket.fd()) && onGuest(guest);
  });
  if (ready(local_.fd())) {
    acceptGuests(local_);
  }
  if (network_ && ready(network_->fd())) {
    acceptGuests(*network_);
  }
}

TimePoint Handshakes::nextDeadline() const {
  auto next = accepting() ? never() : deadlineAfter(kAcceptPause);
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
    onLate(key);
  }
  std::erase_if(
      guests_, [now](const Guest& guest) { return guest.deadline <= now; });
}

void Handshakes::onLate(const ChannelKey& key) {
  const auto& attempt = attempts_.at(key);
  std::string text =
      "its process accepts connections but has not answered for 10 s";
  if (!attempt.socket) {
    text = "it was connecting to us at the same time, and has not come";
  } else if (attempt.connecting) {
    text = "no answer for 5 s";
  }
  onProblem(key, Status(ErrorCode::kPeerFailed, text));
}

} // namespace dlslime
