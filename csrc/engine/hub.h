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
  // Who has come since the last call. The groups are the caller's to leave.
  std::vector<std::shared_ptr<Group>> takeGuests() {
    return guests_->take();
  }
  // Nobody comes any more; who was taken stays. Idempotent.
  void leave();

  const std::shared_ptr<Engine>& engine() const {
    return engine_;
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Guests> guests_;
  std::shared_ptr<Group> group_; // of all who have not come
  Bytes address_;
  std::atomic<bool> left_{false};
};

} // namespace dlslime
