#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "engine/progress/engine_mutex.h"
#include "interface/connection.h"

namespace dlslime {

// The best connections of a pair so far, by route: a connection that falls
// short of them may be replaced by a better connection. Under the engine's
// lock.
class BestConnection {
 public:
  // `began`: this end has asked for the connection. A connection begun by the
  // peer resets the merits, because the best devices for the peer may not be
  // the best for this end.
  void note(const Connection& connection, bool began) REQUIRES(kEngineLock) {
    if (!began) {
      mostMerit_.clear();
    }
    const auto info = connection.info();
    auto& lanes = mostLanes_[std::string(connection.route())];
    lanes = std::max(lanes, info.lanes);
    auto& merit = mostMerit_[std::string(connection.route())];
    merit = std::max(merit, info.merit);
  }
  // True if the pair has had more lanes, or better devices, on the route of the
  // connection, which has been noted.
  bool beats(const Connection& connection) const REQUIRES(kEngineLock) {
    const auto info = connection.info();
    const std::string route(connection.route());
    return info.lanes < mostLanes_.at(route) ||
        info.merit < mostMerit_.at(route);
  }

 private:
  // By route: the most lanes of all connections so far, and the highest merit
  // since the last connection begun by the peer.
  std::map<std::string, size_t> mostLanes_, mostMerit_;
};

} // namespace dlslime
