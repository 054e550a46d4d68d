#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/unique_fd.h"
#include "interface/transport.h"
#include "transports/common/offered.h"
#include "transports/rdma/rdma_connection.h"

namespace dlslime::rdma {

// The route over RDMA NICs: reliable connections over all NICs that are up.
// NICs are opened for the first connection, not before: that takes
// milliseconds, which a job on one host need not spend.
class RdmaTransport final : public Transport {
 public:
  // The PCI addresses of the GPUs that this process uses so far.
  using GpusInUse = std::function<std::vector<std::string>()>;
  static std::vector<std::string> noGpus() {
    return {};
  }
  // Throws Error{kUnavailable}: switched off, or this machine has no RDMA
  // devices.
  explicit RdmaTransport(
      const RdmaConfig& config,
      GpusInUse gpusInUse = noGpus);
  ~RdmaTransport() override;

  std::string_view name() const override {
    return "rdma";
  }
  std::string describe() override; // the NICs
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

  std::vector<int> wakeFds() const override {
    return {events_.get()};
  }
  void drainWakeFds() override;
  void beginSleep() override;
  std::vector<int> deviceFds() const override;
  DeviceNews onDevices() override;

 private:
  using Channels = std::vector<std::shared_ptr<CompletionChannel>>;
  // A rail to be: what the peer calls it, and the NIC for it.
  struct Berth {
    uint8_t number;
    NicPtr nic;
  };

  // rdma_devices.cpp
  void openDevices();
  void watch(const NicList& found);
  std::vector<NicPtr> usableNics();
  void onEvent(
      const rdma::Context& context,
      const rdma::Context::Event& event,
      DeviceNews& news);
  bool othersWork(const Nic& nic) const;
  Place placeOfGpu(const Topology& topology) const;
  void checkNear() const;
  bool measure() const;

  static std::vector<Berth> matchRails(
      const EndAddress& peer,
      const std::vector<NicPtr>& nics);
  std::unique_ptr<RdmaConnection> makeConnection(
      const std::vector<Berth>& berths);
  std::unique_ptr<Rail>
  makeRail(const Berth& berth, uint8_t nicNumber, const RingMemory& memory);
  MemoryRegistrar* registrarFor(const std::vector<NicPtr>& nics);

  const RdmaConfig config_;
  const GpusInUse gpusInUse_;
  UniqueFd events_; // an epoll set of all completion channels
  // Of the wire-up thread alone:
  std::optional<NicList> devices_;
  std::vector<std::unique_ptr<RailRegistrar>> registrars_; // never dropped
  Status unusable_; // why the last try to open them failed,
  TimePoint nextTry_{}; // and when it is worth another
  Offered<std::unique_ptr<RdmaConnection>> offered_;

  std::mutex mutex_;
  // Guarded by mutex_:
  Channels channels_; // one per NIC, in their order
  std::vector<std::weak_ptr<CompletionQueue>> queues_;
};

} // namespace dlslime::rdma
