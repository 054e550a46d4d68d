#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "fakes/cluster.h"
#include "fakes/gpu/fake_gpu.h"
#include "fakes/gpu/gpu_memory.h"
#include "fakes/log_capture.h"
#include "fakes/memory_carriers.h"
#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {

// How two engines with GPUs are connected.
struct GpuWay {
  const char* name;
  RoutePolicy policy = RoutePolicy::kAuto;
  bool apart = false; // on two hosts
  bool staged = false; // NICs can't reach memory of GPUs
};
inline void PrintTo(const GpuWay& way, std::ostream* out) {
  *out << way.name;
}
inline std::string nameOfWay(const ::testing::TestParamInfo<GpuWay>& instance) {
  return instance.param.name;
}
inline const GpuWay kRdmaWay{"Rdma", RoutePolicy::kAuto, true};
inline const GpuWay kGpuWays[] = {
    {"Shm"},
    {"Tcp", RoutePolicy::kTcp},
    {"Gloo", RoutePolicy::kGloo},
    {"RdmaStaged", RoutePolicy::kAuto, true, true},
    kRdmaWay}; // last: with all ways before, bytes are staged

// Two engines, each with a GPU and a stream, on the fake driver.
class GpuWorld : public ::testing::TestWithParam<GpuWay> {
 protected:
  GpuWorld() {
    const auto& way = GetParam();
    setenv("FAKE_CUDA_DMA_BUF", way.staged ? "0" : "1", 1);
    world.emplace(
        2,
        [&](int rank) {
          auto config = way.apart ? rdmaHost(rank) : Config{};
          config.streamWaits = true;
          return config;
        },
        [&](GroupOptions& options) {
          options.route = way.policy;
          options.carrierSource = carriers;
          options.fallback = FallbackPolicy::kAllow;
        });
  }
  Node& node(int rank) {
    return (*world)[rank];
  }
  Counters counters(int rank) { // of the pair
    return node(rank).engine->report(*node(rank).group).at(0).counters;
  }
  bool ends(const Operation& operation) {
    return eventually([&] { return operation.done(); });
  }
  ::testing::AssertionResult endsWell(const Operation& operation) {
    if (ends(operation) && operation.status().ok()) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << operation.status().message();
  }

  LogCapture log;
  AuditedFabric fabric{std::vector<FakeDevice>{nicOf(0), nicOf(1)}};
  std::shared_ptr<MemoryCarriers> carriers = std::make_shared<MemoryCarriers>();
  FakeGpu fake;
  GpuSide one{fake, 0}, other{fake, 1};
  std::optional<Cluster> world;
};

} // namespace dlslime::testing
