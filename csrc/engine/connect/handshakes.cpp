#include "engine/connect/handshakes.h"

#include <algorithm>
#include <set>

#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
constexpr size_t kMostAttempts = 1024;
} // namespace

Handshakes::Handshakes(EngineState& state)
    : state_(state),
      acceptor_(
          {state.self,
           state.directory,
           state.config.interfaces,
           state.config.interfacesSetting},
          [this](const Greeting& greeting) { return secretOf(greeting); }),
      dialer_(state, acceptor_, *this),
      prober_(state, acceptor_),
      incoming_(state, acceptor_, {&dialer_, &prober_.dialer()}, *this) {}

Bytes Handshakes::secretOf(const Greeting& greeting) {
  if (greeting.secret == SecretKind::kToken) {
    return state_.token;
  }
  const EngineLock lock(state_);
  return state_.channels.pairSecretOf({greeting.self, greeting.policy});
}

void Handshakes::begin(const ConnectRequest& request) {
  attemptWith(request.key) = {request.record.group};
  prober_.dialer().drop(request.key);
  if (request.key.instance == state_.self.instance) {
    installSelf(state_, request.key, request.record);
  } else {
    dialer_.begin(request);
  }
}

void Handshakes::probe(ConnectRequest request, Prober::Standing standing) {
  if (!dialer_.dials(request.key) && !prober_.dialer().dials(request.key)) {
    prober_.begin(std::move(request), std::move(standing));
  }
}

bool Handshakes::busy(const ChannelKey& key) const {
  return dialer_.dials(key) || incoming_.busy(key);
}

Status Handshakes::failure(const ChannelKey& key) const {
  const auto found = attempts_.find(key);
  return found == attempts_.end() ? Status() : found->second.why;
}

Status Handshakes::failureFor(const ChannelKey& key, uint32_t group) const {
  const auto found = attempts_.find(key);
  const bool ofAnother = found != attempts_.end() &&
      found->second.why.code() == ErrorCode::kNotJoined &&
      found->second.group != group;
  return ofAnother ? Status() : failure(key);
}

bool Handshakes::gone(const ChannelKey& key) const {
  const auto found = attempts_.find(key);
  return found != attempts_.end() && found->second.gone;
}

void Handshakes::onMade(MadeConnection made, ControlSocket socket) {
  news_ = true;
  acceptor_.noteRoom();
  attempts_.erase(made.key);
  install(state_, std::move(made), std::move(socket));
}

Handshakes::Attempt& Handshakes::attemptWith(const ChannelKey& key) {
  if (attempts_.size() > kMostAttempts) {
    attempts_.clear();
  }
  return attempts_[key];
}

void Handshakes::onFailed(const ChannelKey& key, Status why, bool gone) {
  auto& attempt = attemptWith(key);
  attempt.why = std::move(why);
  attempt.gone = gone;
}

void Handshakes::addTo(std::vector<pollfd>& fds) {
  acceptor_.addTo(fds);
  dialer_.addTo(fds);
  prober_.dialer().addTo(fds);
  incoming_.addTo(fds);
}

void Handshakes::onPoll(const std::vector<pollfd>& fds) {
  state_.wireUpThread.claimThis("a function of the wire-up thread is called");
  std::set<int> heard;
  for (const auto& entry : fds) {
    if (entry.revents != 0) {
      heard.insert(entry.fd);
    }
  }
  // Answers come first: a crossing hello must find a complete connection.
  dialer_.onPoll(heard);
  prober_.dialer().onPoll(heard);
  incoming_.onPoll(heard);
  acceptor_.onPoll(heard);
  for (auto& incoming : acceptor_.take()) {
    incoming_.begin(std::move(incoming));
  }
}

TimePoint Handshakes::nextDeadline() const {
  return std::min(
      {acceptor_.nextDeadline(),
       dialer_.nextDeadline(),
       prober_.dialer().nextDeadline(),
       incoming_.nextDeadline()});
}

void Handshakes::expire(TimePoint looked) {
  state_.wireUpThread.claimThis("a function of the wire-up thread is called");
  dialer_.expire(looked);
  prober_.dialer().expire(looked);
  incoming_.expire(looked);
  acceptor_.expire(looked);
}

} // namespace dlslime
