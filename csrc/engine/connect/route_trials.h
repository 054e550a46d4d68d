#pragma once

#include <string>
#include <vector>

#include "engine/bootstrap/side_sockets.h"
#include "engine/connect/acceptor.h"
#include "engine/connect/connect_request.h"
#include "engine/connect/control_connector.h"
#include "engine/connect/route.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Goes through the routes of a pair, best first, for the initiator of a
// handshake: makes the offer of each usable route, and keeps why a route was
// not taken. Wire-up thread only.
class RouteTrials {
 public:
  // Refers to all three.
  RouteTrials(
      const EngineState& state,
      const Acceptor& acceptor,
      const ConnectRequest& request);

  // Lists the routes; a probe's end with the last worth trying.
  void choose();
  // Makes the offer of the next usable route; false: no route is left. Throws
  // Error when no further route would help.
  bool next();
  // Withdraws the offer, and notes why this route is not taken.
  void reject(const std::string& why);
  // Withdraws the offer, if one was made.
  void withdraw();

  Transport& transport() {
    return *transport_;
  }
  Transport::Context& context() {
    return context_;
  }
  // The record that offers the route, and descriptors to be sent behind it.
  const Hello& hello() const {
    return hello_;
  }
  std::vector<UniqueFd>& fds() {
    return fds_;
  }
  // Returns how to open a side socket for the route.
  SideSocketWay sideSocket(AddressRecord peer, Greeting greeting) const;

  const std::vector<RejectedRoute>& rejected() const {
    return rejected_;
  }
  std::vector<RejectedRoute> takeRejected() {
    return std::move(rejected_);
  }
  bool isFallbackTaken() const {
    return isFallback(*transport_, request_.key.policy);
  }

 private:
  bool offer(const RouteOption& option);
  void makeHello();

  const EngineState& state_;
  const Acceptor& acceptor_; // has this process's own addresses
  const ConnectRequest& request_;
  std::vector<RouteOption> options_;
  size_t next_ = 0; // index of the next option to try
  Transport* transport_ = nullptr; // being tried
  Transport::Context context_;
  Hello hello_;
  std::vector<UniqueFd> fds_;
  std::vector<RejectedRoute> rejected_;
};

} // namespace dlslime
