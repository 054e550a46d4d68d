#include "engine/connect/route_trials.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace dlslime {

RouteTrials::RouteTrials(
    const EngineState& state,
    const Acceptor& acceptor,
    const ConnectRequest& request)
    : state_(state), acceptor_(acceptor), request_(request) {
  context_.carrierSource = request.carrierSource;
  context_.peer = request.record.identity;
  context_.initiator = true;
}

void RouteTrials::choose() {
  options_ = chooseRoutes(
      state_.transports,
      request_.key.policy,
      state_.self,
      request_.record.identity);
  if (request_.probe()) {
    const auto last = std::find_if(
        options_.begin(), options_.end(), [this](const auto& option) {
          return option.route == *request_.probeUpTo;
        });
    options_.erase(last + (last != options_.end()), options_.end());
  }
}

bool RouteTrials::next() {
  while (next_ < options_.size()) {
    if (offer(options_[next_++])) {
      return true;
    }
  }
  return false;
}

bool RouteTrials::offer(const RouteOption& option) {
  transport_ = option.transport;
  if (transport_ == nullptr) {
    rejected_.push_back({option.route, option.reason, false});
    return false;
  }
  if (needsCarrier(*transport_) && !request_.carrierSource) {
    rejected_.push_back(
        {option.route,
         "this process's group has no Gloo to carry messages",
         false});
    return false;
  }
  if (isFallbackTaken()) {
    requireFallbackAllowed(request_.fallback, rejected_);
  }
  try {
    makeHello();
  } catch (const Error& error) {
    if (error.status().code() == ErrorCode::kExhausted) {
      throw; // a shortage says nothing about the route
    }
    rejected_.push_back({option.route, error.what(), true});
    return false;
  }
  return true;
}

void RouteTrials::makeHello() {
  context_.nonce = hex(randomBytes(8));
  Offer offer = transport_->offer(context_);
  Hello hello;
  hello.self = state_.self;
  hello.socketName = acceptor_.socketName();
  hello.addresses = acceptor_.addresses();
  hello.nonce = context_.nonce;
  hello.group = request_.record.group;
  hello.unexpectedLimit = state_.config.unexpectedLimitBytes;
  hello.route = transport_->name();
  hello.blob = std::move(offer.blob);
  hello.descriptors = static_cast<uint8_t>(offer.fds.size());
  for (const auto& entry : rejected_) {
    hello.rejected.emplace_back(entry.route, entry.reason);
  }
  hello.probe = request_.probe();
  hello.replaces = request_.replaces;
  hello.lastSeen = request_.lastSeen;
  hello_ = std::move(hello);
  fds_ = std::move(offer.fds);
}

SideSocketWay RouteTrials::sideSocket(AddressRecord peer, Greeting greeting)
    const {
  auto hello = hello_;
  hello.route = kSideRoute;
  hello.blob.clear();
  hello.descriptors = 0;
  hello.rejected.clear();
  return {
      std::move(peer),
      state_.self,
      state_.directory,
      std::move(greeting),
      request_.secret(),
      encode(hello)};
}

void RouteTrials::reject(const std::string& why) {
  withdraw();
  rejected_.push_back({std::string(transport_->name()), why, true});
}

void RouteTrials::withdraw() {
  if (transport_ != nullptr) {
    transport_->withdraw(context_);
  }
}

} // namespace dlslime
