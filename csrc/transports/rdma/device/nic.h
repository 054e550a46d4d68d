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

// Limits of a device, as the device reports them.
struct NicLimits {
  int maxReadsIn = 0; // as the target: RDMA READs outstanding per queue pair
  int maxReadsOut = 0; // as the initiator
  uint32_t maxRequests = 0; // in a send or receive queue (max_qp_wr)
  uint32_t maxCompletions = 0; // in a completion queue (max_cqe)
};

// A port of an RDMA device, on which queue pairs are made. Only the wire-up
// thread reads and uses the properties that may change in use (the GID, ...).
class Nic {
 public:
  // Throws Error if the device can't be queried.
  Nic(ProtectionDomainPtr domain, uint8_t port, const RdmaConfig& config);

  // Reads the port again, because cables and addresses come and go. Returns ok,
  // or why the port can't be used now: it is down, has no usable GID, ... A
  // changed address calls lose().
  Status refresh();

  // Marks all existing queue pairs as useless. `why` is a string literal.
  void lose(const char* why) {
    whyLost_.store(why, std::memory_order_relaxed);
    losses_.fetch_add(1, std::memory_order_release);
  }
  // losses() counts the calls of lose(), and whyLost() returns the latest
  // reason. Any thread.
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
  // Returns whether the port needs the global header, because virtual ports
  // share a LID.
  bool globalHeaderRequired() const {
    return globalHeaderRequired_;
  }
  ibv_mtu mtu() const {
    return mtu_;
  }
  const Gid& gid() const {
    return gid_;
  }
  // Returns the distance from the memory that is sent: see RdmaConfig::near.
  // Any thread.
  Distance distance() const {
    return distance_.load(std::memory_order_relaxed);
  }
  void setDistance(Distance distance) {
    distance_.store(distance, std::memory_order_relaxed);
  }
  LogOnce& said() { // reasons logged about the NIC; any thread
    return said_;
  }
  uint64_t bitsPerSecond() const {
    return bitsPerSecond_;
  }
  // Returns "mlx5_0:1, Ethernet, GID 3 (10.0.0.1), 400 Gb/s, MTU 4096, PIX".
  std::string describe() const;

 private:
  void readLimits();
  void readPort();
  void setAddress(const Gid& gid, uint16_t lid);
  std::optional<Gid> readGid(uint32_t index) const;
  std::vector<Gid> readGids(uint32_t count) const;
  std::string noGidText(const std::vector<Gid>& table) const;

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

// The NICs found, and why the others are not used.
struct NicList {
  std::vector<NicPtr> nics;
  std::vector<std::string> rejected; // "mlx5_1:1 is not in DLSLIME_NICS=..."
  // Refreshes all NICs and returns the usable NICs. `reasons` gets why the
  // others are not used.
  std::vector<NicPtr> usable(std::vector<std::string>& reasons) const;
};
// Opens every port that `config` asks for, up or down. Throws
// Error{kUnavailable} if the devices can't be listed, and Error{kExhausted} if
// the process has no free descriptor for a device now.
NicList openNics(const Verbs& verbs, const RdmaConfig& config);

// Returns whether DLSLIME_NICS=`wanted` selects the port among `devices`.
bool selects(
    const std::string& wanted,
    const std::string& device,
    uint8_t port,
    const std::vector<std::string>& devices);

} // namespace dlslime::rdma
