#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log_once.h"
#include "transports/rdma/device/gid.h"
#include "transports/rdma/device/gpu_registrations.h"
#include "transports/rdma/device/handles.h"
#include "transports/rdma/device/registration_cache.h"
#include "transports/rdma/device/topology.h"

namespace dlslime::rdma {

// Limits of a device, read from it.
struct NicLimits {
  int maxReadsIn = 0; // RDMA reads outstanding as the target, per queue pair
  int maxReadsOut = 0; // as the initiator
  uint32_t maxRequests = 0; // that a send or a receive queue takes (max_qp_wr)
  uint32_t maxCompletions = 0; // that a completion queue takes (max_cqe)
};

// One port of one RDMA device: what queue pairs are made on. What may change
// while it is used (the GID, ...) is read and used on the wire-up thread only.
class Nic {
 public:
  // Throws Error: the device can't be queried.
  Nic(ProtectionDomainPtr domain, uint8_t port, const RdmaConfig& config);

  // Reads the port again: cables come and go, and addresses with them. Ok, or
  // why it can't be used now: it is down, it has no usable GID, ... Another
  // address than before means lose().
  Status refresh();

  // Queue pairs that were made before are of no use any more. `why` is a
  // literal.
  void lose(const char* why) {
    whyLost_.store(why, std::memory_order_relaxed);
    losses_.fetch_add(1, std::memory_order_release);
  }
  // How often, and why the last time. Any thread.
  uint32_t losses() const {
    return losses_.load(std::memory_order_acquire);
  }
  const char* whyLost() const {
    return whyLost_.load(std::memory_order_relaxed);
  }

  const std::string& name() const { // "mlx5_0:1"
    return name_;
  }
  const ProtectionDomainPtr& domain() const {
    return domain_;
  }
  RegistrationCache& memory() const {
    return *memory_;
  }
  GpuRegistrations& gpuMemory() const {
    return *gpuMemory_;
  }
  const ContextPtr& context() const {
    return domain_->context();
  }
  uint8_t port() const {
    return port_;
  }
  const NicLimits& limits() const {
    return limits_;
  }
  bool ethernet() const {
    return ethernet_;
  }
  uint16_t lid() const {
    return lid_;
  }
  // LIDs alone do not tell it from others: virtual ports share one.
  bool globalHeaderRequired() const {
    return globalHeaderRequired_;
  }
  ibv_mtu mtu() const {
    return mtu_;
  }
  const Gid& gid() const {
    return gid_;
  }
  // From the memory that is sent: see RdmaConfig::near. Any thread.
  Distance distance() const {
    return distance_.load(std::memory_order_relaxed);
  }
  void setDistance(Distance distance) {
    distance_.store(distance, std::memory_order_relaxed);
  }
  LogOnce& said() { // what was logged of it; any thread
    return said_;
  }
  uint64_t bitsPerSecond() const {
    return bitsPerSecond_;
  }
  // "mlx5_0:1, Ethernet, GID 3 (10.0.0.1), 400 Gb/s, MTU 4096, PIX"
  std::string describe() const;

 private:
  void readLimits();
  void readPort();
  void setAddress(const Gid& gid, uint16_t lid);
  std::optional<Gid> readGid(uint32_t index) const;
  std::vector<Gid> readGids(uint32_t count) const;

  const ProtectionDomainPtr domain_;
  const std::shared_ptr<RegistrationCache> memory_;
  const std::unique_ptr<GpuRegistrations> gpuMemory_;
  const uint8_t port_;
  const int wantedGid_; // index; -1: the best
  const std::string name_;
  NicLimits limits_;
  bool ethernet_ = true;
  bool globalHeaderRequired_ = false;
  bool addressed_ = false; // gid_ and lid_ have been read
  uint16_t lid_ = 0;
  ibv_mtu mtu_ = IBV_MTU_1024;
  Gid gid_;
  std::atomic<Distance> distance_{Distance::kNode};
  uint64_t bitsPerSecond_ = 0;
  std::atomic<const char*> whyLost_{""};
  std::atomic<uint32_t> losses_{0};
  LogOnce said_;
};
using NicPtr = std::shared_ptr<Nic>;

// What was found, and why the rest is not used.
struct NicList {
  std::vector<NicPtr> nics;
  std::vector<std::string> rejected; // "mlx5_1:1 is not in DLSLIME_NICS=..."
  // Those that can be used now, refreshed; the others' reasons are added.
  std::vector<NicPtr> usable(std::vector<std::string>& reasons) const;
};
// Opens every port that `config` asks for, up or down. Throws
// Error{kUnavailable} if the devices can't be listed, Error{kExhausted} if this
// process has no descriptor for one of them now.
NicList openNics(const Verbs& verbs, const RdmaConfig& config);

// Whether DLSLIME_NICS=`wanted` selects this port among `devices`.
bool selects(
    const std::string& wanted,
    const std::string& device,
    uint8_t port,
    const std::vector<std::string>& devices);

} // namespace dlslime::rdma
