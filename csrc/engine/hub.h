#pragma once

#include <memory>
#include <vector>

#include "engine/endpoint.h"

namespace dlslime {

// Where any number of processes connect by Endpoint::connect(), without being
// known before: each is in a group of two of its own with this one, which is
// rank 0 there. Any thread.
class Hub {
 public:
  Hub(std::shared_ptr<Engine> engine, const Endpoint::Options& options);
  ~Hub() {
    leave();
  }
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // What Endpoint::connect() takes; the same during the hub's life.
  const Bytes& address() const {
    return address_;
  }
  // Those that have come since the last call. The groups are the caller's, to
  // leave or to keep().
  std::vector<std::shared_ptr<Group>> accept() {
    return acceptQueue_->accept();
  }
  // Nobody comes any more; only accepted guests stay. Idempotent.
  void leave();

  const std::shared_ptr<Engine>& engine() const {
    return engine_;
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<AcceptQueue> acceptQueue_;
  std::shared_ptr<Group> group_; // of all who have not come
  Bytes address_;
  std::atomic<bool> left_{false};
};

} // namespace dlslime
