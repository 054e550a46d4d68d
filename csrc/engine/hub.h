#pragma once

#include <memory>
#include <vector>

#include "base/library/api.h"
#include "engine/endpoint.h"

namespace dlslime {

// Accepts any number of endpoints, not known before, that connect by
// Endpoint::connect(). Each endpoint gets a separate group of two with the hub,
// and the hub is rank 0. Any thread may call.
class DLSLIME_API Hub {
 public:
  Hub(std::shared_ptr<Engine> engine, const Endpoint::Options& options);
  ~Hub() {
    leave();
  }
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // Argument for Endpoint::connect(); the same during the hub's life.
  const Bytes& address() const {
    return address_;
  }
  // Returns the groups of endpoints that have connected since the last call.
  // The caller owns the groups, and gives each back by Engine::leave() or
  // Engine::keepGuest().
  std::vector<std::shared_ptr<Group>> accept();
  // Lets no endpoint connect any more; only guests accepted and still owned by
  // the caller stay. Idempotent.
  void leave();

  const std::shared_ptr<Engine>& engine() const {
    return engine_;
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<AcceptQueue> acceptQueue_;
  std::shared_ptr<Group>
      group_; // the group that connecting endpoints ask to join
  Bytes address_;
  std::atomic<bool> left_{false};
};

} // namespace dlslime
