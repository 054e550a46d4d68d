#include "engine/connect/route.h"

#include "base/log.h"

namespace dlslime {

namespace {
Status allowed(RoutePolicy policy, const Transport& transport) {
  if (policy == RoutePolicy::kAuto) {
    return needsCarrier(transport)
        ? Status(
              ErrorCode::kUnavailable,
              "taken only if named (DLSLIME_ROUTE=gloo)")
        : Status();
  }
  const auto forced = routePolicyName(policy);
  return transport.name() == forced
      ? Status()
      : Status(ErrorCode::kUnavailable, "excluded by route=" + forced);
}
} // namespace

std::vector<RouteOption> chooseRoutes(
    const Transports& transports,
    RoutePolicy policy,
    const PeerIdentity& self,
    const PeerIdentity& peer) {
  auto options = transports.routes();
  for (auto& option : options) {
    if (option.transport == nullptr) {
      continue;
    }
    auto usable = allowed(policy, *option.transport);
    if (usable.ok()) {
      usable = option.transport->reaches(self, peer);
    }
    if (!usable.ok()) {
      option = {option.route, nullptr, usable.message()};
    }
  }
  return options;
}

bool needsCarrier(const Transport& transport) {
  return transport.name() == "gloo";
}

bool needsSideSocket(const Transport& transport) {
  return needsCarrier(transport) || transport.name() == "tcp";
}

bool isFallback(const Transport& transport, RoutePolicy policy) {
  return transport.name() == "tcp" && policy == RoutePolicy::kAuto;
}

void requireFallbackAllowed(
    FallbackPolicy policy,
    const std::vector<RejectedRoute>& rejected) {
  if (policy == FallbackPolicy::kForbid) {
    throw Error(
        ErrorCode::kUnavailable,
        "no fast route, and falling back to TCP is forbidden "
        "(DLSLIME_FALLBACK): " +
            describeRejected(rejected));
  }
}

void tellFallback(
    FallbackPolicy policy,
    const std::string& peer,
    const std::vector<RejectedRoute>& rejected) {
  const std::string what = "messages to and from " + peer +
      " go over TCP, the slowest route, because " + describeRejected(rejected);
  if (policy == FallbackPolicy::kWarn) {
    logWarning(
        what +
        ". Set DLSLIME_FALLBACK=forbid to make the fallback an error, "
        "=allow to silence the warning");
  } else {
    logInfo(what);
  }
}

std::string describeRejected(const std::vector<RejectedRoute>& rejected) {
  std::string text;
  for (const auto& entry : rejected) {
    text += (text.empty() ? "" : "; ") + entry.route + ": " + entry.reason;
  }
  return text.empty() ? "no route was tried before" : text;
}

} // namespace dlslime
