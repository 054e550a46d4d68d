#include "engine/route.h"

#include "core/log.h"

namespace dlslime {

RouteChoice chooseRoutes(
    const Transports& transports,
    RoutePolicy policy,
    const PeerIdentity& self,
    const PeerIdentity& peer) {
  RouteChoice choice;
  for (const auto& [route, reason] : transports.absent()) {
    choice.rejected.push_back({route, reason});
  }
  const auto forced = routePolicyName(policy);
  for (const auto& transport : transports.all()) {
    const std::string name(transport->name());
    if (policy != RoutePolicy::kAuto && name != forced) {
      choice.rejected.push_back({name, "excluded by route=" + forced});
      continue;
    }
    const auto reachable = transport->reaches(self, peer);
    if (reachable.ok()) {
      choice.candidates.push_back(transport.get());
    } else {
      choice.rejected.push_back({name, reachable.message()});
    }
  }
  return choice;
}

bool isFallback(const Transport& transport, RoutePolicy policy) {
  return transport.name() == "gloo" && policy == RoutePolicy::kAuto;
}

void requireFallback(
    FallbackPolicy policy,
    const std::string& peer,
    const std::vector<RejectedRoute>& rejected) {
  const std::string what = "messages to and from " + peer +
      " go by Gloo, the slowest route, because " + describeRejected(rejected);
  switch (policy) {
    case FallbackPolicy::kAllow:
      logInfo(what);
      return;
    case FallbackPolicy::kWarn:
      logWarning(
          what +
          ". Set DLSLIME_FALLBACK=forbid to make this an error, "
          "=allow to silence it");
      return;
    case FallbackPolicy::kForbid:
      break;
  }
  throw Error(
      ErrorCode::kUnavailable,
      "no fast route, and falling back to Gloo is forbidden "
      "(DLSLIME_FALLBACK): " +
          describeRejected(rejected));
}

std::string describeRejected(const std::vector<RejectedRoute>& rejected) {
  std::string text;
  for (const auto& entry : rejected) {
    text += (text.empty() ? "" : "; ") + entry.route + ": " + entry.reason;
  }
  return text.empty() ? "none was tried before" : text;
}

} // namespace dlslime
