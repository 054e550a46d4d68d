#include "engine/connect/handshakes.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/random.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
constexpr size_t kMostFailures = 1024;
constexpr milliseconds kMostDraining{20}; // all handshakes wait meanwhile
} // namespace

Handshakes::Handshakes(EngineState& state)
    : state_(state),
      acceptor_(
          {state.self, state.config.interfaces, state.config.interfacesSetting},
          [this](const Greeting& greeting) { return secretOf(greeting); }) {}

Bytes Handshakes::secretOf(const Greeting& greeting) {
  if (greeting.secret == SecretKind::kToken) {
    return state_.token;
  }
  const EngineLock lock(state_);
  return state_.channels.pairSecretOf({greeting.self, greeting.policy});
}

Handshakes::~Handshakes() {
  sideSockets_->close();
}

void Handshakes::begin(Request request) {
  const ChannelKey key = request.key;
  if (request.than) {
    if (attempts_.contains(key)) {
      return;
    }
  } else {
    failures_.erase(key);
    drop(key); // ends a probe
  }
  if (key.instance == state_.self.instance) {
    connectSelf(request);
    return;
  }
  start(key, std::move(request));
}

void Handshakes::start(const ChannelKey& key, Request request) {
  Attempt attempt;
  attempt.options = chooseRoutes(
      state_.transports, key.policy, state_.self, request.record.identity);
  if (request.than) {
    const auto current = std::find_if(
        attempt.options.begin(), attempt.options.end(), [&](const auto& entry) {
          return entry.route == request.than->route;
        });
    attempt.options.erase(
        current + (current != attempt.options.end()), attempt.options.end());
  }
  attempt.request = std::move(request);
  attempt.context.carrierSource = attempt.request.carrierSource;
  attempt.context.peer = attempt.request.record.identity;
  attempt.context.initiator = true;
  auto& placed = attempts_.emplace(key, std::move(attempt)).first->second;
  try {
    requireAddress(placed);
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
  const EngineLock lock(state_);
  auto channel = state_.makeChannel(
      request.record.identity, state_.config.unexpectedLimitBytes);
  channel->connected(Transports::makeSelfConnection(), {});
  state_.channels.add(
      request.key, {request.record, {}}, std::move(channel), std::nullopt);
}

bool Handshakes::busy(const ChannelKey& key) const {
  const auto own = attempts_.find(key);
  return (own != attempts_.end() && !own->second.request.than) ||
      std::any_of(
             incoming_.begin(),
             incoming_.end(),
             [&](const IncomingHandshake& handshake) {
               return !handshake.made.probe && handshake.made.key == key;
             });
}

Status Handshakes::failure(const ChannelKey& key) const {
  const auto found = failures_.find(key);
  return found == failures_.end() ? Status() : found->second.why;
}

bool Handshakes::gone(const ChannelKey& key) const {
  const auto found = failures_.find(key);
  return found != failures_.end() && found->second.gone;
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
      attempt.rejected.push_back({option.route, option.reason, false});
      continue;
    }
    if (needsCarrier(*attempt.transport) && !attempt.request.carrierSource) {
      attempt.rejected.push_back(
          {option.route,
           "this process's group has no Gloo to carry messages",
           false});
      continue;
    }
    if (isFallback(*attempt.transport, attempt.request.key.policy)) {
      requireFallbackAllowed(attempt.request.fallback, attempt.rejected);
    }
    try {
      makeHello(attempt, *attempt.transport);
    } catch (const Error& error) {
      if (error.status().code() == ErrorCode::kExhausted) {
        throw; // a shortage says nothing about the route
      }
      attempt.rejected.push_back({option.route, error.what(), true});
      continue;
    }
    connect(attempt); // a throw is final: a new route would not help
    return true;
  }
  return false;
}

void Handshakes::makeHello(Attempt& attempt, Transport& transport) {
  const auto& record = attempt.request.record;
  attempt.context.nonce = hex(randomBytes(8));
  Offer offer = transport.offer(attempt.context);
  Hello hello;
  hello.self = state_.self;
  hello.socketName = socketName();
  hello.addresses = addresses();
  hello.nonce = attempt.context.nonce;
  hello.group = record.group;
  hello.unexpectedLimit = state_.config.unexpectedLimitBytes;
  hello.route = transport.name();
  hello.blob = std::move(offer.blob);
  hello.descriptors = static_cast<uint8_t>(offer.fds.size());
  for (const auto& entry : attempt.rejected) {
    hello.rejected.emplace_back(entry.route, entry.reason);
  }
  hello.probe = attempt.request.than.has_value();
  hello.replaces = attempt.request.replaces;
  hello.lastSeen = attempt.request.lastSeen;
  attempt.hello = std::move(hello);
  attempt.helloFds = std::move(offer.fds);
  const bool first = attempt.request.pairSecret.empty();
  attempt.greeting = {
      record.identity.instance,
      state_.self.instance,
      attempt.request.key.policy,
      first ? SecretKind::kToken : SecretKind::kPair,
      {}};
}

// Prepares the opening of a side socket, beginning with the address reached by
// the first socket.
void Handshakes::makeSideSocket(Attempt& attempt) const {
  if (!needsSideSocket(*attempt.transport)) {
    return;
  }
  auto record = attempt.request.record;
  if (attempt.address < record.addresses.size()) {
    const auto reached =
        record.addresses.begin() + static_cast<ptrdiff_t>(attempt.address);
    std::rotate(record.addresses.begin(), reached, record.addresses.end());
  }
  auto hello = attempt.hello;
  hello.route = kSideRoute;
  hello.blob.clear();
  hello.descriptors = 0;
  hello.rejected.clear();
  attempt.context.sideSocket = [way = SideSocketWay{
                                    std::move(record),
                                    state_.self,
                                    attempt.greeting,
                                    attempt.request.secret(),
                                    encode(hello)}](TimePoint deadline) {
    return openSideSocket(way, deadline);
  };
}

void Handshakes::onSocket(const ChannelKey& key) {
  auto& attempt = attempts_.at(key);
  try {
    if (attempt.connecting) {
      onConnected(attempt);
    } else {
      onAnswer(key);
    }
  } catch (const std::exception& error) {
    onProblem(key, statusOf(error));
  }
}

void Handshakes::drop(const ChannelKey& key) {
  const auto found = attempts_.find(key);
  if (found != attempts_.end()) {
    if (found->second.transport != nullptr) {
      found->second.transport->withdraw(found->second.context);
    }
    attempts_.erase(found);
  }
}

void Handshakes::fail(const ChannelKey& key, Status why) {
  const bool probe = attempts_.at(key).request.than.has_value();
  const bool gone = attempts_.at(key).gone;
  drop(key);
  if (probe) {
    logDebug("no better connection is possible: " + why.message());
    return;
  }
  noteFailure(key, {std::move(why), gone});
}

void Handshakes::noteFailure(const ChannelKey& key, Failure failure) {
  if (failures_.size() > kMostFailures) {
    failures_.clear();
  }
  failures_[key] = std::move(failure);
}

void Handshakes::tryAnother(Attempt& attempt, const std::string& why) {
  if (attempt.connection) {
    tellProblem(attempt, why);
  }
  attempt.connection.reset();
  attempt.transport->withdraw(attempt.context);
  attempt.rejected.push_back(
      {std::string(attempt.transport->name()), why, true});
  if (!tryNext(attempt)) {
    throw Error(
        ErrorCode::kUnavailable,
        "no route works: " + describeRejected(attempt.rejected));
  }
}

void Handshakes::addTo(std::vector<pollfd>& fds) const {
  acceptor_.addTo(fds);
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.socket) {
      const short wanted = attempt.connecting ? POLLOUT : POLLIN;
      fds.push_back({attempt.socket->fd(), wanted, 0});
    }
  }
  for (const auto& handshake : incoming_) {
    fds.push_back({handshake.incoming.socket.fd(), POLLIN, 0});
  }
}

void Handshakes::onPoll(const std::vector<pollfd>& fds) {
  state_.wireUpThread.claimThis("a function of the wire-up thread is called");
  drainUntil_ = deadlineAfter(kMostDraining);
  std::set<int> heard;
  for (const auto& entry : fds) {
    if (entry.revents != 0) {
      heard.insert(entry.fd);
    }
  }
  const auto ready = [&](int fd) { return heard.contains(fd); };
  std::vector<ChannelKey> answered;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.socket && ready(attempt.socket->fd())) {
      answered.push_back(key);
    }
  }
  // Answers come first: a crossing hello must find a complete connection.
  for (const auto& key : answered) {
    onSocket(key);
  }
  std::erase_if(incoming_, [&](IncomingHandshake& handshake) {
    return ready(handshake.incoming.socket.fd()) && onConfirm(handshake);
  });
  acceptor_.onPoll(heard);
  for (auto& incoming : acceptor_.take()) {
    onIncoming(std::move(incoming));
  }
}

TimePoint Handshakes::nextDeadline() const {
  auto next = acceptor_.nextDeadline();
  for (const auto& [key, attempt] : attempts_) {
    next = std::min(
        next,
        attempt.connection ? deadlineAfter(kVerifyPause) : attempt.deadline);
  }
  for (const auto& handshake : incoming_) {
    next = std::min(next, handshake.deadline);
  }
  return next;
}

void Handshakes::expire(TimePoint looked) {
  state_.wireUpThread.claimThis("a function of the wire-up thread is called");
  std::vector<ChannelKey> late, verifying;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.connection) {
      verifying.push_back(key);
    }
  }
  for (const auto& key : verifying) {
    onVerifying(key);
  }
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.deadline <= looked) {
      late.push_back(key);
    }
  }
  for (const auto& key : late) {
    onLate(key);
  }
  dropIncoming([looked](const IncomingHandshake& handshake) {
    return handshake.deadline <= looked;
  });
  acceptor_.expire(looked);
}

void Handshakes::onLate(const ChannelKey& key) {
  auto& attempt = attempts_.at(key);
  if (attempt.connection) {
    try {
      tryAnother(attempt, "the connection is made, but no message passes");
    } catch (const Error& error) {
      fail(key, error.status());
    }
    return;
  }
  std::string text =
      "its process accepts connections but has not answered for " +
      std::to_string(kHandshakeTime / std::chrono::seconds(1)) + " s";
  if (!attempt.socket) {
    text =
        "the peer has connected to this process, or was connecting, but no "
        "connection has come within " +
        std::to_string(kCrossedTime / milliseconds(1)) + " ms";
  } else if (attempt.connecting) {
    text = "no answer for " +
        std::to_string(kConnectTime / std::chrono::seconds(1)) + " s";
  }
  onProblem(key, Status(ErrorCode::kTimeout, text));
}

} // namespace dlslime
