#pragma once

#include <memory>
#include <vector>

#include "engine/hub.h"
#include "torch_ext/one_sided/peer_link.h"

namespace dlslime {

// Link to a peer that has connected to a hub. If the link is dropped without
// close(), the peer stays until the peer or the hub leaves.
class GuestLink final : public PeerLink {
 public:
  explicit GuestLink(std::shared_ptr<GroupHandle> handle)
      : PeerLink(std::move(handle), 1) {}
  ~GuestLink() override;
  void close();

 private:
  std::atomic<bool> closed_{false};
};

// Wraps a Hub for Python. Any thread.
class HubLink {
 public:
  explicit HubLink(const Endpoint::Options& options);
  ~HubLink();
  HubLink(const HubLink&) = delete;
  HubLink& operator=(const HubLink&) = delete;

  const Bytes& address() const {
    return hub_->address();
  }
  // Returns the peers that have connected since the last call.
  std::vector<std::shared_ptr<GuestLink>> accept();
  void close() {
    hub_->leave();
  }

 private:
  std::unique_ptr<Hub> hub_;
  const milliseconds timeout_;
};

} // namespace dlslime
