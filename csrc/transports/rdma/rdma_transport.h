#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/threads/mutex.h"
#include "base/unique_fd.h"
#include "interface/transport.h"
#include "transports/common/offered.h"
#include "transports/rdma/rail_plan.h"
#include "transports/rdma/rdma_connection.h"

namespace dlslime::rdma {

// The route over RDMA: reliable connections over all active NICs. The NICs are
// opened for the first connection, because opening takes milliseconds and a job
// on a single host needs none.
class RdmaTransport final : public Transport,
                            public WakeSource,
                            public DeviceWatch {
 public:
  // Returns the PCI addresses of the GPUs used by the process so far.
  using GpusInUse = std::function<std::vector<std::string>()>;
  static std::vector<std::string> noGpus() {
    return {};
  }
  // Throws Error{kUnavailable} if RDMA is switched off or the machine has no
  // RDMA devices.
  explicit RdmaTransport(
      const RdmaConfig& config,
      GpusInUse gpusInUse = noGpus);
  ~RdmaTransport() override;

  std::string_view name() const override {
    return "rdma";
  }
  std::string describe() override; // the NICs
  // Always ok: only the handshake finds out whether the peer has NICs within
  // reach.
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

  WakeSource* wakeSource() override {
    return this;
  }
  DeviceWatch* deviceWatch() override {
    return this;
  }
  std::vector<int> wakeFds() const override {
    return {events_.get()};
  }
  void drainWakeFds() override;
  void beginSleep() override;
  std::vector<int> deviceFds() const override;
  News onDevices() override;

 private:
  using Channels = std::vector<std::shared_ptr<CompletionChannel>>;
  // rdma_devices.cpp defines the functions from openDevices() to measure().
  void openDevices();
  void watch(const NicList& found);
  std::vector<NicPtr> usableNics();
  void onEvent(
      const rdma::Context& context,
      const rdma::Context::Event& event,
      News& news);
  bool othersWork(const Nic& nic) const;
  Place placeOfGpu(const Topology& topology) const;
  void checkNear() const;
  bool measure() const;

  std::unique_ptr<RdmaConnection> makeConnection(
      const std::vector<RailPlan>& plans);
  std::unique_ptr<Rail>
  makeRail(const RailPlan& plan, uint8_t nicNumber, const RingMemory& memory);
  MemoryRegistrar* registrarFor(const std::vector<NicPtr>& nics);
  std::shared_ptr<CompletionChannel> channelOf(size_t place) {
    const MutexLock lock(mutex_);
    return channels_[place];
  }

  const RdmaConfig config_;
  const GpusInUse gpusInUse_;
  UniqueFd events_; // an epoll set of all completion channels
  // Only the wire-up thread uses the members from devices_ to offered_.
  std::optional<NicList> devices_;
  // Never shrinks, because groups keep pointers to the elements.
  std::vector<std::unique_ptr<RailRegistrar>> registrars_;
  Status unusable_; // why the last attempt to open the devices failed
  // Earliest time of the next attempt to open the devices.
  TimePoint nextTry_{};
  Offered<std::unique_ptr<RdmaConnection>> offered_;

  Mutex mutex_;
  Channels channels_ GUARDED_BY(mutex_); // in the order of devices_->nics
  std::vector<std::weak_ptr<CompletionQueue>> queues_ GUARDED_BY(mutex_);
};

} // namespace dlslime::rdma
