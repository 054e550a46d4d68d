#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"

namespace dlslime {

enum class RoutePolicy : uint8_t { kAuto, kShm, kGloo, kRdma, kTcp };
constexpr auto kLastRoutePolicy = RoutePolicy::kTcp;
enum class FallbackPolicy : uint8_t { kWarn, kAllow, kForbid };

// Whether streams of GPUs are made to wait for what a processor will do.

std::string routePolicyName(RoutePolicy policy);
// Both throw Error{kInvalidArgument} that lists the allowed words.
RoutePolicy parseRoutePolicy(const std::string& text);
FallbackPolicy parseFallbackPolicy(const std::string& text);

// How RDMA devices are chosen and queue pairs set up. The numbers are those of
// the InfiniBand specification. Where a variable is not set, NCCL's of the
// same meaning counts: NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_IB_SL, ...
struct RdmaConfig {
  // DLSLIME_RDMA=auto|off
  bool enabled = true;
  // DLSLIME_NICS: "mlx5_0,mlx5_1:2": names, or prefixes where they match no
  // whole name, each with a port or all; "=mlx5_1" takes no prefixes;
  // "^mlx5_bond" excludes instead. Empty: every active port.
  std::string nics;
  // DLSLIME_NEAR: the PCI address of the GPU whose memory is sent
  // ("0000:18:00.0"): only the NICs nearest to it are used. Empty: the one GPU
  // that the process uses; without one, or with several, the NICs on the NUMA
  // nodes where the process may run come first.
  std::string near;
  std::string sysfs = "/sys"; // for tests
  // DLSLIME_GPUDIRECT=auto|off: whether NICs get at memory of GPUs.
  bool gpuDirect = true;
  int gidIndex = -1; // DLSLIME_GID_INDEX; -1: the best one
  int serviceLevel = 0; // DLSLIME_IB_SL
  int trafficClass = 0; // DLSLIME_IB_TC: DSCP and ECN bits of RoCE v2
  int pkeyIndex = 0; // DLSLIME_IB_PKEY
  // DLSLIME_IB_TIMEOUT: an unanswered packet is sent again after
  // 4.096 us * 2^timeout, here 0.54 s, ...
  int timeout = 17;
  int retryCount = 7; // DLSLIME_IB_RETRY_CNT: ... this many times.
  // DLSLIME_QPS_PER_NIC: queue pairs per NIC between two processes; more than
  // one for networks that choose a path per queue pair.
  int queuePairs = 1;
  // DLSLIME_REGISTRATION_BYTES: memory per NIC that stays registered, and so
  // pinned, for its next use; 0: every transfer registers anew.
  size_t cacheBytes = size_t{4} << 30;
};

// Every setting of a process, read once when its engine starts. Each comes
// from the environment variable named beside it; docs/configuration.md is the
// table for users.
struct Config {
  // DLSLIME_ROUTE=auto|shm|rdma|tcp|gloo: which routes a pair may take.
  RoutePolicy route = RoutePolicy::kAuto;
  // DLSLIME_FALLBACK=warn|allow|forbid: what taking TCP for want of better
  // means.
  FallbackPolicy fallback = FallbackPolicy::kWarn;
  // DLSLIME_SHM=auto|off: off makes this process behave as if its peers could
  // not share memory with it.
  bool shm = true;
  // DLSLIME_CMA=auto|off: off streams through shared memory where
  // process_vm_readv would do.
  bool crossMemoryAttach = true;
  RdmaConfig rdma;
  // DLSLIME_GPU_KERNEL=auto|off: whether many small pieces of GPU memory are
  // copied by the GPU's processors rather than by its copy engines.
  bool gpuKernel = true;
  // DLSLIME_STREAM_WAITS=off|on: whether wait() of a CUDA tensor makes the
  // stream wait instead of the host, which can end in a deadlock.
  bool streamWaits = false;
  // DLSLIME_HOSTID: processes share memory only where it is the same; empty:
  // the machine's boot number. As NCCL_HOSTID, its default.
  std::string hostId;
  // DLSLIME_SOCKET_IFNAME: the interfaces by which other hosts connect, as
  // NCCL_SOCKET_IFNAME, its default, or GLOO_SOCKET_IFNAME, the next one.
  std::string interfaces;
  std::string interfacesSetting; // "NCCL_SOCKET_IFNAME=eth0", as it was given
  // DLSLIME_EAGER_LIMIT, bytes: up to this size a message is copied into the
  // peer's ring at once. Measured with benchmarks/limit: written past the
  // cache, two copies through the ring take 5.0 us for 64 KiB of fresh data,
  // process_vm_readv 35 us, both ends at once 19 us.
  size_t eagerLimitBytes = 64 * 1024;
  // DLSLIME_RING_BYTES: size of each direction's ring. Larger than L2 costs
  // cache misses, smaller stalls windows of messages.
  size_t ringBytes = 1024 * 1024;
  // DLSLIME_UNEXPECTED_LIMIT, bytes: eager data a receiver keeps per peer for
  // receives that are not posted yet; above it the sender announces instead.
  size_t unexpectedLimitBytes = 16 * 1024 * 1024;
  // DLSLIME_ANNOUNCED_LIMIT, bytes: what a receiver keeps of messages that a
  // peer has announced and that no receive has taken yet, 256 bytes for each; a
  // peer that announces more has failed.
  size_t announcedLimitBytes = size_t{64} << 20;
  // DLSLIME_SPIN_US: how long a waiter polls before it sleeps. Not set: a few
  // times the cost of sleeping and waking (engine/progress/syscall_cost.h), 50
  // us for a cost of 9 us.
  std::optional<microseconds> spin;
  // DLSLIME_TICK_US: how often the background thread looks beside threads that
  // wait or post. Not set: as what looking costs allows, 1 ms where that is
  // 20 us.
  std::optional<microseconds> tick;
  // DLSLIME_RECOVERY_MS: how long a connection that was lost is looked for
  // another; 0: what goes on fails at once.
  milliseconds recovery{30000};
  // How much of that passes before Gloo may take its place, at most a quarter:
  // a link that was down answers by TCP before its NIC says that it is up, and
  // switches take seconds. Not for users.
  milliseconds patience{3000};
  // DLSLIME_RETURN_MS: how long a connection that could not have the best route
  // or all NICs goes on before it tries again whether it can; longer each time.
  // 0: it never does.
  milliseconds returning{10000};
  // DLSLIME_LINGER_MS: how long shutdown() waits for sends that nobody waited
  // for.
  milliseconds linger{1000};
  // DLSLIME_LOG=error|warn|info|debug
  LogLevel logLevel = LogLevel::kWarning;

  // Throws Error{kInvalidArgument} naming the variable, its value and what is
  // allowed.
  static Config fromEnvironment();
};

} // namespace dlslime
