#pragma once

#include <functional>

#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {

// Returns a NIC with the address 10.`network`.0.`host`.
inline FakeDevice nicIn(uint8_t network, const char* name, uint8_t host) {
  FakeDevice device;
  device.name = name;
  device.ports[0].gids[0].value = ipv4Gid(10, network, 0, host);
  return device;
}
// Host 0 has "nic0a" and "nic0b", a NIC in each of two networks; host 1 has
// "nic1a" and "nic1b", listed in reverse.
inline std::vector<FakeDevice> twoNetworks() {
  return {
      nicIn(9, "nic0a", 1),
      nicIn(10, "nic0b", 1),
      nicIn(10, "nic1b", 2),
      nicIn(9, "nic1a", 2)};
}

// Two ranks on two hosts, connected over TCP, too.
class RdmaPair : public ::testing::Test {
 protected:
  explicit RdmaPair(std::vector<FakeDevice> devices)
      : fabric(std::move(devices)) {}

  using Change = std::function<void(Config& config, int rank)>;
  void start(
      const Change& change = {},
      FallbackPolicy fallback = FallbackPolicy::kAllow) {
    world.emplace(
        2,
        [change](int rank) {
          auto config = rdmaHost(rank);
          if (change) {
            change(config, rank);
          }
          return config;
        },
        [fallback](GroupOptions& options) { options.fallback = fallback; });
    ASSERT_TRUE(world->passes(0, 1));
  }
  auto report(int rank) {
    auto& node = (*world)[rank];
    return node.engine->report(*node.group).at(0);
  }
  std::string route(int rank) {
    return report(rank).route;
  }
  std::string devices(int rank) {
    return report(rank).devices;
  }
  uint32_t replaced(int rank) {
    return report(rank).replaced;
  }
  // For use during traffic: cuts a NIC until the loss is noticed, then cuts
  // both NICs many times.
  void cutOften() {
    fabric.cut("nic0");
    EXPECT_TRUE(eventually([&] {
      return log.count("is lost (RDMA by nic") > 0;
    })) << log.all();
    fabric.cut("nic0", false);
    for (int i = 0; i < 40; ++i) {
      std::this_thread::sleep_for(milliseconds(3 + i % 20));
      fabric.cut(i % 2 == 0 ? "nic0" : "nic1");
      std::this_thread::sleep_for(milliseconds(i % 5));
      fabric.cut(i % 2 == 0 ? "nic0" : "nic1", false);
    }
  }
  // Sends messages of all sizes, one after the other, and checks each; at least
  // `count`, and on until `over`.
  void stream(int from, int count, const std::atomic<bool>* over = nullptr) {
    for (int i = 0; !HasFatalFailure() &&
         (over == nullptr ? i < count : i < count || !*over);
         ++i) {
      const size_t size = i % 7 == 0 ? (2 << 20) + 5
          : i % 3 == 0               ? 300000
                                     : 1 + 700 * size_t(i % 50);
      const auto bytes = pattern(size, unsigned(i));
      const auto receive = (*world)[1 - from].receive(from, from, size);
      const auto send = (*world)[from].send(1 - from, from, bytes);
      ASSERT_TRUE((*world)[1 - from].wait(receive)) << i;
      ASSERT_TRUE(receive->status().ok()) << receive->status().message();
      ASSERT_EQ(receive->buffer(), bytes) << i;
      ASSERT_TRUE((*world)[from].wait(send)) << i;
      ASSERT_TRUE(send->status().ok()) << send->status().message();
    }
  }

  LogCapture log;
  AuditedFabric fabric;
  std::optional<Cluster> world;
};

} // namespace dlslime::testing
