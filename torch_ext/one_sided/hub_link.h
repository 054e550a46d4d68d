#pragma once

#include <memory>
#include <vector>

#include "engine/hub.h"
#include "torch_ext/one_sided/peer_link.h"

namespace dlslime {

// A peer that has come to a hub. It stays until one of the two leaves, also
// where nobody holds this any more; then the hub's end ends it, too.
class GuestLink final : public PeerLink {
 public:
  explicit GuestLink(std::shared_ptr<GroupHandle> handle)
      : PeerLink(std::move(handle), 1) {}
  ~GuestLink() override;
  void close();

 private:
  std::atomic<bool> closed_{false};
};

// See Hub. Any thread.
class HubLink {
 public:
  explicit HubLink(const Endpoint::Options& options);
  ~HubLink();
  HubLink(const HubLink&) = delete;
  HubLink& operator=(const HubLink&) = delete;

  const Bytes& address() const {
    return hub_->address();
  }
  // Who has come since the last call.
  std::vector<std::shared_ptr<GuestLink>> accept();
  void close() {
    hub_->leave();
  }

 private:
  std::unique_ptr<Hub> hub_;
  const milliseconds timeout_;
};

} // namespace dlslime
