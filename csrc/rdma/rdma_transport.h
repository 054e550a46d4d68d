#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/offered.h"
#include "core/transport.h"
#include "rdma/rdma_connection.h"

namespace dlslime::rdma {

// The route over RDMA NICs: reliable connections, one queue pair each.
class RdmaTransport final : public Transport {
 public:
  // Throws Error{kUnavailable} if there is no usable port, with what was found
  // instead.
  RdmaTransport(const Verbs& verbs, const RdmaOptions& options);

  std::string_view name() const override {
    return "rdma";
  }
  // Whether the peer has NICs, and reaches ours, only the handshake tells.
  Status reaches(const PeerIdentity& /*self*/, const PeerIdentity& /*peer*/)
      const override {
    return {};
  }
  Offer offer(const Context& context) override;
  std::unique_ptr<Connection>
  accept(const Context& context, Offer offer, Offer& answer) override;
  std::unique_ptr<Connection> finish(const Context& context, Offer answer)
      override;
  void withdraw(const Context& context) override;

  std::vector<int> wakeFds() const override;
  void drainWakeFds() override;
  void beginSleep() override;

  const std::vector<NicPtr>& nics() const {
    return nics_;
  }

 private:
  std::unique_ptr<RdmaConnection> makeConnection();

  const RdmaOptions options_;
  std::vector<NicPtr> nics_;
  std::vector<std::shared_ptr<CompletionChannel>> channels_; // one per NIC
  Offered<std::unique_ptr<RdmaConnection>> offered_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<CompletionQueue>> queues_; // guarded by mutex_
};

} // namespace dlslime::rdma
