// Devices with small queues, and processes that may lock little memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

#include "fakes/child_process.h"
#include "fakes/guarded_operation.h"
#include "fakes/peers/endpoint.h"
#include "fakes/status_of.h"
#include "fakes/verbs/rdma_pair.h"
#include "transports/rdma/rdma_transport.h"

namespace dlslime::testing {
namespace {

using rdma::Rail;

constexpr uint32_t kFewSends = 32;

// Returns the result of `body` for the only NIC of a fabric.
template <typename Body>
auto onNic(const FakeDevice& device, const Body& body) {
  const AuditedFabric fabric({device});
  return body(*rdma::openNics(FakeFabric::verbs(), {}).nics.at(0));
}

rdma::QueueDepths depthsOn(const FakeDevice& device) {
  return onNic(device, Rail::depthsOn);
}

FakeDevice small(const char* name, int requests, int completions) {
  auto device = nicIn(9, name, name[3] == '0' ? 1 : 2);
  device.maxRequests = requests;
  device.maxCompletions = completions;
  return device;
}

TEST(RdmaLimits, QueuesAreAsDeepAsTheDeviceAllows) {
  const auto most = depthsOn({});
  EXPECT_GT(most.sends, kFewSends);
  const int ring = static_cast<int>(most.receives);
  const auto sends = [&](int requests, int completions) {
    return depthsOn(small("nic0", requests, completions)).sends;
  };
  EXPECT_EQ(sends(ring, 1 << 20), most.sends);
  EXPECT_EQ(sends(ring, ring + 100), 100U) << "receives need theirs";
  EXPECT_EQ(sends(ring, ring + int(kFewSends)), kFewSends);
  EXPECT_EQ(
      onNic(
          small("nic0", ring, ring + 100),
          [](const auto& nic) { return Rail::mostCompletions(nic); }),
      ring + 100);
}

TEST(RdmaLimits, QueuesThatAreTooSmallAreRefusedWithBothNumbers) {
  const int ring = static_cast<int>(depthsOn({}).receives);
  const auto refusal = [&](int requests, int completions) {
    return statusOf([&] { depthsOn(small("nic0", requests, completions)); });
  };
  const auto requests = refusal(ring - 1, 1 << 20);
  EXPECT_EQ(requests.code(), ErrorCode::kUnavailable);
  for (const auto& text :
       {std::string("nic0:1: its queues are too small"),
        std::to_string(ring - 1) + " requests (max_qp_wr)",
        "needs " + std::to_string(ring) + " and ",
        std::string("DLSLIME_NICS")}) {
    EXPECT_TRUE(mentions(requests, text.c_str())) << requests.message();
  }
  const auto completions = refusal(ring, ring + int(kFewSends) - 1);
  EXPECT_TRUE(mentions(completions, "1375 completions (max_cqe)"))
      << completions.message();
}

TEST(RdmaLimits, QueuePairThatADeviceRefusesIsNamedWithItsDepths) {
  const AuditedFabric fabric({small("nic0", 2000, 5000)});
  const auto nic = rdma::openNics(FakeFabric::verbs(), {}).nics.at(0);
  const auto queue =
      std::make_shared<rdma::CompletionQueue>(nic->context(), nullptr, 5000);
  const auto made = [&](rdma::QueueDepths depths) {
    return statusOf([&] { rdma::QueuePair(nic, queue, depths, {}); });
  };
  EXPECT_TRUE(made({2000, 2000, 0}).ok());
  EXPECT_TRUE(mentions(
      made({10, 2001, 0}),
      "cannot make a queue pair of 10 sends and 2001 receives on nic0:1"));
  EXPECT_FALSE(made({2001, 10, 0}).ok());
  EXPECT_TRUE(mentions(
      statusOf([&] { rdma::CompletionQueue(nic->context(), nullptr, 5001); }),
      "cannot make a completion queue of 5001 entries on nic0"));
}

// Two ends on devices with the smallest permitted send queues.
class RdmaFewSends : public ::testing::Test {
 protected:
  RdmaFewSends() {
    const auto nics = rdma::openNics(FakeFabric::verbs(), {}).nics;
    for (const size_t end : {0, 1}) {
      EXPECT_TRUE(nics.at(end)->refresh().ok());
      connections_[end] = make(nics[end]);
      groups_[end] = ends_[end].join(static_cast<int>(end), 2);
    }
    const rdma::EndAddress addresses[] = {
        connections_[0]->address(), connections_[1]->address()};
    for (const int end : {1, 0}) {
      connections_[end]->connect(addresses[1 - end], end == 0);
    }
    for (const int end : {0, 1}) {
      ends_[end].connect(std::move(connections_[end]));
    }
    for (const int end : {0, 1}) {
      ends_[end].reach(
          *groups_[end],
          1 - end,
          ends_[end].channels[0],
          groups_[1 - end]->id());
    }
    settle();
  }
  static std::unique_ptr<rdma::RdmaConnection> make(const rdma::NicPtr& nic) {
    const auto queue = std::make_shared<rdma::CompletionQueue>(
        nic->context(), nullptr, Rail::mostCompletions(*nic));
    auto memory = std::make_unique<rdma::RingMemory>();
    rdma::RdmaConnection::Rails rails;
    rails.push_back(
        std::make_unique<Rail>(0, 0, nic, queue, *memory, RdmaConfig()));
    EXPECT_EQ(rails[0]->depths.sends, kFewSends);
    return std::make_unique<rdma::RdmaConnection>(
        std::move(memory), std::move(rails), [](const auto& /*nics*/) {
          return nullptr;
        });
  }
  void settle() {
    for (int quiet = 0, i = 0; quiet < 20 && i < 100000; ++i) {
      const bool first = ends_[0].poll();
      const bool second = ends_[1].poll();
      quiet = first || second ? 0 : quiet + 1;
    }
  }

  static FakeDevice smallest(const char* name) {
    const int ring = static_cast<int>(depthsOn({}).receives);
    return small(name, ring, ring + int(kFewSends));
  }
  AuditedFabric fabric{{smallest("nic0"), smallest("nic1")}};
  Endpoint ends_[2] = {
      Endpoint({16 * 1024, 4 * 1024 * 1024}),
      Endpoint({16 * 1024, 4 * 1024 * 1024})};
  std::shared_ptr<Group> groups_[2];
  std::unique_ptr<rdma::RdmaConnection> connections_[2];
};

TEST_F(RdmaFewSends, FloodInBothDirectionsArrives) {
  for (const int delay : {0, 3}) {
    fabric.delay(delay);
    std::vector<std::pair<GuardedPtr, GuardedPtr>> all;
    for (int i = 0; i < 3000; ++i) {
      for (const int from : {0, 1}) {
        const size_t size = i % 50 == 0 ? 700000 : i % 3 == 0 ? 9000 : 8;
        auto sent = GuardedOperation::send(1 - from, 0, pattern(size, i));
        auto got = GuardedOperation::receive(from, 0, size);
        ends_[from].send(*groups_[from], sent);
        ends_[1 - from].receive(*groups_[1 - from], got);
        all.emplace_back(std::move(sent), std::move(got));
      }
    }
    settle();
    for (const auto& [sent, got] : all) {
      ASSERT_TRUE(sent->done() && sent->status().ok()) << sent->describe();
      ASSERT_TRUE(got->done() && got->status().ok()) << got->describe();
      ASSERT_TRUE(std::equal(
          sent->result().begin(), sent->result().end(), got->result().begin()));
    }
  }
  EXPECT_GT(fabric.requests(IBV_WR_RDMA_READ), 0U);
}

class RdmaSmallNic : public RdmaPair {
 protected:
  RdmaSmallNic() : RdmaPair(devices()) {}
  static std::vector<FakeDevice> devices() {
    auto all = twoNetworks();
    all[0].maxRequests = 1000; // "nic0a"
    return all;
  }
};

TEST_F(RdmaSmallNic, IsLeftOutAndNamedAndTheOtherIsUsed) {
  start();
  ASSERT_TRUE(world->passes(0, 1, 9 << 20));
  EXPECT_EQ(route(0), "rdma");
  EXPECT_EQ(RdmaPair::devices(0), "nic0b:1");
  EXPECT_EQ(RdmaPair::devices(1), "nic1b:1") << "of the same network";
  EXPECT_EQ(
      log.count("nic0a:1: its queues are too small: they take 1000 requests"),
      1U)
      << log.all();
}

TEST_F(RdmaSmallNic, TakesNoPlaceAtAPeerWithOneNic) {
  RdmaConfig config;
  config.nics = "nic1a"; // in the network of the small NIC
  rdma::RdmaTransport peer(config);
  config.nics = "nic0";
  rdma::RdmaTransport transport(config);
  Transport::Context context;
  context.nonce = "n";
  Offer answer;
  const auto connection =
      transport.accept(context, peer.offer(context), answer);
  EXPECT_EQ(connection->info().devices, "nic0b:1");
  peer.withdraw(context);
}

TEST_F(RdmaSmallNic, AloneIsWhyThereIsNoRdma) {
  RdmaConfig config;
  config.nics = "nic0a";
  rdma::RdmaTransport transport(config);
  const auto status = statusOf([&] { transport.describe(); });
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(status, "nic0a:1: its queues are too small"))
      << status.message();
}

// Exits with 0 if the text has all required parts.
const ChildRole lockedMemory("locked memory", [](const auto& /*arguments*/) {
  FakeFabric fabric;
  const auto nic = rdma::openNics(FakeFabric::verbs(), {}).nics.at(0);
  const rlimit limit{64 * 1024, 64 * 1024};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    return 2;
  }
  static std::byte bytes[1 << 20];
  const auto registered = [&](int error) {
    fabric.failRegistrations(error);
    return statusOf(
        [&] { rdma::MemoryRegion(nic->domain(), {bytes, sizeof(bytes)}); });
  };
  const auto refused = registered(ENOMEM);
  for (const char* const text :
       {"cannot register 1048576 bytes with fake0: errno 12",
        "the limit on locked memory is 64 KiB",
        "ulimit -l unlimited"}) {
    if (!mentions(refused, text)) {
      return 3;
    }
  }
  // A different error must give a different text.
  return mentions(registered(EFAULT), "locked memory") ? 4 : 0;
});

TEST(RdmaLimits, TooLittleLockedMemoryIsNamedWithWhatRaisesIt) {
  ChildProcess child("locked memory", {});
  EXPECT_EQ(child.join(), 0);
}

} // namespace
} // namespace dlslime::testing
