#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/library/api.h"
#include "base/log.h"

namespace dlslime {

enum class RoutePolicy : uint8_t { kAuto, kShm, kGloo, kRdma, kTcp };
constexpr auto kLastRoutePolicy = RoutePolicy::kTcp;
enum class FallbackPolicy : uint8_t { kWarn, kAllow, kForbid };

DLSLIME_API std::string routePolicyName(RoutePolicy policy);
// Throws Error{kInvalidArgument} listing the allowed words.
DLSLIME_API RoutePolicy parseRoutePolicy(const std::string& text);
// Throws Error{kInvalidArgument} listing the allowed words.
DLSLIME_API FallbackPolicy parseFallbackPolicy(const std::string& text);

// Choice of RDMA devices and settings of queue pairs, with the numbers of the
// InfiniBand specification. An unset variable takes the value of NCCL's
// equivalent: NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_IB_SL, ...
struct RdmaConfig {
  // DLSLIME_RDMA=auto|off
  bool enabled = true;
  // DLSLIME_NICS, for example "mlx5_0,mlx5_1:2": names, or prefixes where no
  // whole name matches, each with a port or for all ports. "=mlx5_1" takes no
  // prefixes, "^mlx5_bond" excludes, and an empty text takes every active port.
  std::string nics;
  // DLSLIME_NEAR: PCI address ("0000:18:00.0") of the GPU with the memory to be
  // sent; only the NICs nearest to the GPU are used. If empty, the only GPU in
  // use by the process counts; with none or several, the NICs on the NUMA nodes
  // where the process may run come first.
  std::string near;
  std::string sysfs = "/sys"; // changed by tests
  // DLSLIME_GPUDIRECT=auto|off: whether NICs access memory of GPUs.
  bool gpuDirect = true;
  int gidIndex = -1; // DLSLIME_GID_INDEX; -1: the best entry
  int serviceLevel = 0; // DLSLIME_IB_SL
  int trafficClass = 0; // DLSLIME_IB_TC: DSCP and ECN bits of RoCE v2
  int pkeyIndex = 0; // DLSLIME_IB_PKEY
  // DLSLIME_IB_TIMEOUT: an unanswered packet is sent again after 4.096 us *
  // 2^timeout; 17 is 0.54 s.
  int timeout = 17;
  int retryCount =
      7; // DLSLIME_IB_RETRY_CNT: how often an unanswered packet is sent again
  // DLSLIME_QPS_PER_NIC: queue pairs per NIC between two processes; several are
  // for networks choosing a path per queue pair.
  int queuePairs = 1;
  // DLSLIME_REGISTRATION_BYTES: bytes per NIC of memory kept registered, and so
  // pinned, for the next use; 0: every transfer registers anew.
  size_t cacheBytes = size_t{4} << 30;
};

// Settings of a process, read once when the engine starts, each from the
// environment variable named beside the member. docs/configuration.md is the
// table for users.
struct DLSLIME_API Config {
  // DLSLIME_ROUTE=auto|shm|rdma|tcp|gloo: the routes allowed to a pair.
  RoutePolicy route = RoutePolicy::kAuto;
  // DLSLIME_FALLBACK=warn|allow|forbid: whether taking TCP for want of a better
  // route is warned of, allowed or an error.
  FallbackPolicy fallback = FallbackPolicy::kWarn;
  // DLSLIME_SHM=auto|off: off makes the process behave as if no peer could
  // share memory with it.
  bool shm = true;
  // DLSLIME_CMA=auto|off: off streams messages through shared memory where
  // process_vm_readv would do.
  bool crossMemoryAttach = true;
  RdmaConfig rdma;
  // DLSLIME_GPU_KERNEL=auto|off: whether many small pieces of GPU memory are
  // copied by the GPU's processors instead of the copy engines.
  bool gpuKernel = true;
  // DLSLIME_STREAM_WAITS=off|on: whether wait() of a CUDA tensor makes the
  // stream wait instead of the host, at the risk of a deadlock.
  bool streamWaits = false;
  // DLSLIME_HOSTID, or else NCCL_HOSTID: only processes with equal host ids
  // share memory. If empty, the machine's boot number is the id.
  std::string hostId;
  // DLSLIME_RENDEZVOUS_DIR, or else NVIDIA_DRA_LOCAL_IPC_DIR: a directory
  // mounted into several containers of a host, in which processes of separate
  // network namespaces meet.
  std::string rendezvousDir;
  std::string rendezvousSetting; // as given: "DLSLIME_RENDEZVOUS_DIR=/pods"
  // DLSLIME_SOCKET_IFNAME, or else NCCL_SOCKET_IFNAME, or else
  // GLOO_SOCKET_IFNAME: the interfaces by which processes on remote hosts
  // connect, as a NameList.
  std::string interfaces;
  std::string interfacesSetting; // as given: "NCCL_SOCKET_IFNAME=eth0"
  // DLSLIME_EAGER_LIMIT, bytes: up to the limit a message is copied into the
  // peer's ring at once. Measured with benchmarks/limit for 64 KiB of fresh
  // data: two copies through the ring, written past the cache, take 5.0 us;
  // process_vm_readv takes 35 us, at both ends at once 19 us.
  size_t eagerLimitBytes = 64 * 1024;
  // DLSLIME_RING_BYTES: size of each direction's ring. A ring larger than L2
  // costs cache misses; a smaller ring stalls windows of messages.
  size_t ringBytes = 1024 * 1024;
  // DLSLIME_UNEXPECTED_LIMIT, bytes: eager data kept by a receiver per peer for
  // receives not posted yet; beyond the limit the sender announces messages
  // instead.
  size_t unexpectedLimitBytes = 16 * 1024 * 1024;
  // DLSLIME_ANNOUNCED_LIMIT, bytes: memory of a receiver for messages announced
  // by a peer and not yet taken by a receive, 256 bytes each; a peer announcing
  // more has failed.
  size_t announcedLimitBytes = size_t{64} << 20;
  // DLSLIME_SPIN_US: how long a waiting thread polls before sleeping. If unset,
  // a few times the cost of sleeping and waking
  // (engine/progress/pacing.h): 50 us for a cost of 9 us.
  std::optional<microseconds> spin;
  // DLSLIME_TICK_US: how often the background thread looks for news while
  // threads of the program wait or post. If unset, the time follows from the
  // cost of a look: 1 ms for a cost of 20 us.
  std::optional<microseconds> tick;
  // DLSLIME_RECOVERY_MS: how long failover looks for a replacement of a lost
  // connection; 0: operations in progress fail at once.
  milliseconds recovery{30000};
  // Part of the recovery time, at most a quarter, before TCP may replace a lost
  // connection: a link coming up answers by TCP before its NIC reports the link
  // as up, and switches take seconds. Not for users.
  milliseconds patience{3000};
  // DLSLIME_RETURN_MS: how long a connection without the best route, or without
  // all NICs, goes on before a better connection is tried; the time grows with
  // each try. 0: never.
  milliseconds returning{10000};
  // DLSLIME_LINGER_MS: how long shutdown() waits for sends that no thread has
  // waited for.
  milliseconds linger{1000};
  // DLSLIME_FLIGHT_DIR: folder for the flight records of operations that hang.
  // If empty, a folder for the user in TMPDIR or /tmp.
  std::string flightDir;
  // DLSLIME_FLIGHT_SIGNAL=USR1|USR2: a signal at which the flight record is
  // written; empty: none.
  std::string flightSignal;
  // DLSLIME_LOG=error|warn|info|debug
  LogLevel logLevel = LogLevel::kWarning;

  // Reads the environment. Throws Error{kInvalidArgument} naming the variable,
  // the value and the allowed values.
  static Config fromEnvironment();
};

} // namespace dlslime
