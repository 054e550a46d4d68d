// Settings: variables of the environment, and words of callers.
#include "base/config.h"

#include "base/name_list.h"
#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

constexpr const char* kVariables[] = {
    "DLSLIME_ROUTE",       "DLSLIME_SHM",
    "DLSLIME_CMA",         "DLSLIME_LOG",
    "DLSLIME_FALLBACK",    "DLSLIME_RDMA",
    "DLSLIME_NICS",        "DLSLIME_GID_INDEX",
    "DLSLIME_IB_SL",       "DLSLIME_IB_TC",
    "DLSLIME_IB_TIMEOUT",  "DLSLIME_QPS_PER_NIC",
    "DLSLIME_HOSTID",      "DLSLIME_SOCKET_IFNAME",
    "DLSLIME_EAGER_LIMIT", "DLSLIME_RING_BYTES",
    "DLSLIME_SPIN_US",     "DLSLIME_UNEXPECTED_LIMIT",
    "DLSLIME_TICK_US",     "DLSLIME_ANNOUNCED_LIMIT",
    "DLSLIME_RECOVERY_MS", "DLSLIME_REGISTRATION_BYTES",
    "NCCL_IB_HCA",         "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",  "GLOO_SOCKET_IFNAME",
    "TORCH_CPP_LOG_LEVEL", "DLSLIME_STREAM_WAITS",
    "NCCL_IB_GID_INDEX",   "NCCL_IB_QPS_PER_CONNECTION"};

void checkConfig(const Config& config) {
  require(config.eagerLimitBytes <= 1 << 20, "eager messages are small");
  require(
      config.ringBytes >= 1 << 14 && config.ringBytes <= 1 << 30 &&
          config.ringBytes % 4096 == 0,
      "rings are whole pages");
  require(config.announcedLimitBytes >= 4096, "something may be announced");
  require(config.recovery.count() >= 0, "no time is negative");
  require(
      config.rdma.queuePairs >= 1 && config.rdma.queuePairs <= 128,
      "queue pairs are few");
  require(
      config.rdma.serviceLevel <= 15 && config.rdma.gidIndex <= 255 &&
          config.rdma.gidIndex >= -1,
      "numbers fit a queue pair");
}

void run(Input input) {
  std::vector<const char*> set;
  for (int i = 0; i < 3; ++i) {
    const char* const name = kVariables[input.below(std::size(kVariables))];
    const auto value = textOf(input.upTo(input.below(48)));
    setenv(name, value.c_str(), 1);
    set.push_back(name);
  }
  takes([] { checkConfig(Config::fromEnvironment()); });
  for (const char* const name : set) {
    unsetenv(name);
  }
  const auto word = textOf(input.rest());
  takes([&] { routePolicyName(parseRoutePolicy(word)); });
  takes([&] { parseFallbackPolicy(word); });
  for (const auto& entry : NameList::parse(word).entries) {
    require(!entry.empty(), "no name is empty");
  }
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
