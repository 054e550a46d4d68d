#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/connect/failback.h"
#include "engine/connect/failover.h"
#include "engine/connect/handshakes.h"
#include "engine/connect/rank_search.h"
#include "engine/inspect/inspection_socket.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// The thread that connects processes: it finds ranks, answers handshakes and
// joins, closes connections, and replaces those that broke or that could be
// better. It sleeps in poll() while there is nothing to do.
class WireUp {
 public:
  explicit WireUp(EngineState& state);
  ~WireUp();
  void start();
  void stop(); // idempotent; joins

  // Begins to look for `ranks` of `group`, which have come into use. Any
  // thread.
  void resolve(
      const std::shared_ptr<Group>& group,
      const std::vector<int>& ranks) {
    search_.add(group, ranks);
  }
  const std::string& socketName() const {
    return handshakes_.socketName();
  }
  std::vector<std::string> addresses() const {
    return handshakes_.addresses();
  }

 private:
  void run();
  void round();
  void answerJoins();
  void sleep();
  void onDevices();

  EngineState& state_;
  Handshakes handshakes_;
  RankSearch search_;
  Failover failover_;
  Failback failback_;
  InspectionSocket inspection_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  TimePoint looked_{}; // begin of the last poll() of all descriptors
};

} // namespace dlslime
