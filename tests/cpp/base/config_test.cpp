#include "base/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "base/status.h"

namespace dlslime {
namespace {

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    clear();
  }
  ~ConfigTest() override {
    clear();
  }
  static void clear() {
    for (const char* name : kNames) {
      unsetenv(name);
    }
    for (const char* name : kTexts) {
      unsetenv(name);
    }
  }
  static void set(
      std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) {
      setenv(name, value, 1);
    }
  }
  static std::string refusal(const char* name, const char* value) {
    setenv(name, value, 1);
    std::string text;
    try {
      Config::fromEnvironment();
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), ErrorCode::kInvalidArgument);
      text = error.what();
    }
    unsetenv(name);
    return text;
  }
  static constexpr const char* kNames[] = {
      "DLSLIME_ROUTE",
      "DLSLIME_FALLBACK",
      "DLSLIME_SHM",
      "DLSLIME_CMA",
      "DLSLIME_EAGER_LIMIT",
      "DLSLIME_RING_BYTES",
      "DLSLIME_UNEXPECTED_LIMIT",
      "DLSLIME_SPIN_US",
      "DLSLIME_TICK_US",
      "DLSLIME_LINGER_MS",
      "DLSLIME_RECOVERY_MS",
      "DLSLIME_RETURN_MS",
      "DLSLIME_STREAM_WAITS",
      "DLSLIME_LOG",
      "DLSLIME_RDMA",
      "DLSLIME_REGISTRATION_BYTES",
      "DLSLIME_GID_INDEX",
      "DLSLIME_IB_SL",
      "DLSLIME_IB_TC",
      "DLSLIME_IB_PKEY",
      "DLSLIME_IB_TIMEOUT",
      "DLSLIME_IB_RETRY_CNT",
      "DLSLIME_QPS_PER_NIC",
      "NCCL_IB_QPS_PER_CONNECTION",
      "NCCL_IB_DISABLE",
      "NCCL_IB_GID_INDEX",
      "NCCL_IB_SL",
      "NCCL_IB_TC",
      "NCCL_IB_PKEY",
      "NCCL_IB_TIMEOUT",
      "NCCL_IB_RETRY_CNT"};
  // Variables for which any text is valid.
  static constexpr const char* kTexts[] = {
      "DLSLIME_NICS",
      "DLSLIME_NEAR",
      "DLSLIME_GPUDIRECT",
      "DLSLIME_GPU_KERNEL",
      "DLSLIME_HOSTID",
      "DLSLIME_SOCKET_IFNAME",
      "NCCL_IB_HCA",
      "NCCL_HOSTID",
      "NCCL_SOCKET_IFNAME",
      "GLOO_SOCKET_IFNAME"};
};

TEST_F(ConfigTest, EmptyEnvironmentGivesTheDefaults) {
  const Config defaults;
  const auto config = Config::fromEnvironment();
  EXPECT_EQ(config.route, defaults.route);
  EXPECT_EQ(config.fallback, defaults.fallback);
  EXPECT_EQ(config.shm, defaults.shm);
  EXPECT_EQ(config.crossMemoryAttach, defaults.crossMemoryAttach);
  EXPECT_EQ(config.eagerLimitBytes, defaults.eagerLimitBytes);
  EXPECT_EQ(config.ringBytes, defaults.ringBytes);
  EXPECT_EQ(config.unexpectedLimitBytes, defaults.unexpectedLimitBytes);
  EXPECT_EQ(config.spin, defaults.spin);
  EXPECT_EQ(config.tick, defaults.tick);
  EXPECT_EQ(config.linger, defaults.linger);
  EXPECT_EQ(config.recovery, defaults.recovery);
  EXPECT_EQ(config.returning, defaults.returning);
  EXPECT_EQ(config.rdma.queuePairs, defaults.rdma.queuePairs);
  EXPECT_EQ(config.logLevel, defaults.logLevel);
}

TEST_F(ConfigTest, EveryVariableIsRead) {
  set(
      {{"DLSLIME_ROUTE", "gloo"},
       {"DLSLIME_FALLBACK", "forbid"},
       {"DLSLIME_SHM", "off"},
       {"DLSLIME_CMA", "off"},
       {"DLSLIME_EAGER_LIMIT", "1234"},
       {"DLSLIME_RING_BYTES", "65536"},
       {"DLSLIME_UNEXPECTED_LIMIT", "99"},
       {"DLSLIME_SPIN_US", "7"},
       {"DLSLIME_TICK_US", "107"},
       {"DLSLIME_LINGER_MS", "8"},
       {"DLSLIME_RECOVERY_MS", "9"},
       {"DLSLIME_RETURN_MS", "11"},
       {"DLSLIME_NEAR", "0000:18:00.0"},
       {"DLSLIME_GPUDIRECT", "off"},
       {"DLSLIME_GPU_KERNEL", "off"},
       {"DLSLIME_STREAM_WAITS", "on"},
       {"DLSLIME_REGISTRATION_BYTES", "10"},
       {"DLSLIME_LOG", "debug"}});
  const auto config = Config::fromEnvironment();
  EXPECT_EQ(config.route, RoutePolicy::kGloo);
  EXPECT_EQ(config.fallback, FallbackPolicy::kForbid);
  EXPECT_FALSE(config.shm);
  EXPECT_FALSE(config.crossMemoryAttach);
  EXPECT_EQ(config.eagerLimitBytes, 1234U);
  EXPECT_EQ(config.ringBytes, 65536U);
  EXPECT_EQ(config.unexpectedLimitBytes, 99U);
  EXPECT_EQ(config.spin, microseconds(7));
  EXPECT_EQ(config.tick, microseconds(107));
  EXPECT_EQ(config.linger, milliseconds(8));
  EXPECT_EQ(config.recovery, milliseconds(9));
  EXPECT_EQ(config.returning, milliseconds(11));
  EXPECT_EQ(config.rdma.near, "0000:18:00.0");
  EXPECT_FALSE(config.rdma.gpuDirect);
  EXPECT_FALSE(config.gpuKernel);
  EXPECT_TRUE(config.streamWaits);
  EXPECT_EQ(config.rdma.cacheBytes, 10U);
  EXPECT_EQ(config.logLevel, LogLevel::kDebug);
}

TEST_F(ConfigTest, NcclsNetworkSettingsAreTheDefaults) {
  set(
      {{"NCCL_IB_HCA", "=mlx5_0:1"},
       {"NCCL_IB_GID_INDEX", "3"},
       {"NCCL_IB_SL", "4"},
       {"NCCL_IB_TC", "106"},
       {"NCCL_IB_PKEY", "5"},
       {"NCCL_IB_TIMEOUT", "22"},
       {"NCCL_IB_RETRY_CNT", "6"},
       {"NCCL_IB_QPS_PER_CONNECTION", "16"},
       {"NCCL_IB_DISABLE", "1"},
       {"NCCL_HOSTID", "a"},
       {"NCCL_SOCKET_IFNAME", "eth"}});
  const auto config = Config::fromEnvironment();
  EXPECT_EQ(config.rdma.nics, "=mlx5_0:1");
  EXPECT_EQ(config.rdma.gidIndex, 3);
  EXPECT_EQ(config.rdma.serviceLevel, 4);
  EXPECT_EQ(config.rdma.trafficClass, 106);
  EXPECT_EQ(config.rdma.pkeyIndex, 5);
  EXPECT_EQ(config.rdma.timeout, 22);
  EXPECT_EQ(config.rdma.retryCount, 6);
  EXPECT_EQ(config.rdma.queuePairs, 16);
  EXPECT_FALSE(config.rdma.enabled);
  EXPECT_EQ(config.hostId, "a");
  EXPECT_EQ(config.interfaces, "eth");
}

TEST_F(ConfigTest, OwnNetworkSettingsGoBeforeNccls) {
  set(
      {{"DLSLIME_NICS", "own"},
       {"DLSLIME_GID_INDEX", "1"},
       {"DLSLIME_IB_SL", "2"},
       {"DLSLIME_IB_TC", "3"},
       {"DLSLIME_IB_PKEY", "4"},
       {"DLSLIME_IB_TIMEOUT", "5"},
       {"DLSLIME_IB_RETRY_CNT", "6"},
       {"DLSLIME_HOSTID", "own"},
       {"DLSLIME_SOCKET_IFNAME", "own"},
       {"DLSLIME_RDMA", "auto"}});
  set(
      {{"NCCL_IB_DISABLE", "1"},
       {"NCCL_IB_HCA", "theirs"},
       {"NCCL_IB_GID_INDEX", "9"},
       {"NCCL_IB_TC", "9"},
       {"NCCL_HOSTID", "theirs"},
       {"NCCL_SOCKET_IFNAME", "theirs"}});
  const auto config = Config::fromEnvironment();
  EXPECT_TRUE(config.rdma.enabled);
  EXPECT_EQ(config.rdma.nics, "own");
  EXPECT_EQ(config.rdma.gidIndex, 1);
  EXPECT_EQ(config.rdma.serviceLevel, 2);
  EXPECT_EQ(config.rdma.trafficClass, 3);
  EXPECT_EQ(config.rdma.pkeyIndex, 4);
  EXPECT_EQ(config.rdma.timeout, 5);
  EXPECT_EQ(config.rdma.retryCount, 6);
  EXPECT_EQ(config.hostId, "own");
  EXPECT_EQ(config.interfaces, "own");
}

TEST_F(ConfigTest, GloosInterfacesAreTheLastDefaultAndWholeNames) {
  set({{"GLOO_SOCKET_IFNAME", "eth0,eth1"}});
  EXPECT_EQ(Config::fromEnvironment().interfaces, "=eth0,eth1");
}

TEST_F(ConfigTest, BadValueNamesVariableAndValue) {
  for (const char* name : kNames) {
    for (const char* value :
         {"nonsense",
          "-2",
          "12x",
          "99999999999999999999",
          "AUTO",
          "1.5",
          "0x10"}) {
      const auto text = refusal(name, value);
      EXPECT_NE(text.find(name), std::string::npos)
          << name << "=" << value << " said: " << text;
      EXPECT_NE(text.find(value), std::string::npos) << text;
    }
  }
}

TEST_F(ConfigTest, BadWordListsTheAllowedOnes) {
  const auto text = refusal("DLSLIME_ROUTE", "rdma9");
  for (const char* word : {"auto", "shm", "rdma", "tcp", "gloo"}) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

TEST_F(ConfigTest, EmptyValueMeansTheDefault) {
  for (const char* name : kNames) {
    EXPECT_EQ(refusal(name, ""), "") << name;
  }
}

TEST_F(ConfigTest, NumbersOutOfRangeAreRefused) {
  EXPECT_NE(refusal("DLSLIME_RING_BYTES", "16383"), "");
  EXPECT_EQ(refusal("DLSLIME_RING_BYTES", "16384"), "");
  EXPECT_NE(refusal("DLSLIME_RING_BYTES", "1073741825"), "");
  EXPECT_NE(refusal("DLSLIME_EAGER_LIMIT", "1048577"), "");
  EXPECT_EQ(refusal("DLSLIME_EAGER_LIMIT", "0"), "");
  EXPECT_NE(refusal("DLSLIME_SPIN_US", "1000001"), "");
  EXPECT_NE(refusal("DLSLIME_TICK_US", "99"), "");
  EXPECT_NE(refusal("DLSLIME_TICK_US", "3600000001"), "");
}

TEST_F(ConfigTest, GidIndexIsWhatAnAddressHandleCanName) {
  for (const char* const name : {"DLSLIME_GID_INDEX", "NCCL_IB_GID_INDEX"}) {
    EXPECT_EQ(refusal(name, "255"), "");
    EXPECT_EQ(refusal(name, "-1"), "") << "the best one";
    EXPECT_EQ(
        refusal(name, "256"),
        std::string(name) + "=256 is not understood: set it to 0..255");
  }
}

TEST_F(ConfigTest, RingBytesAreRefusedOrRoundedToPages) {
  set({{"DLSLIME_RING_BYTES", "100000"}});
  try {
    const auto config = Config::fromEnvironment();
    EXPECT_EQ(config.ringBytes % 4096, 0U)
        << "every peer refuses rings of such a size";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("DLSLIME_RING_BYTES"),
        std::string::npos);
  }
}

TEST_F(ConfigTest, PoliciesOfOptionsAreParsedByName) {
  EXPECT_EQ(parseRoutePolicy("shm"), RoutePolicy::kShm);
  EXPECT_EQ(parseFallbackPolicy("allow"), FallbackPolicy::kAllow);
  EXPECT_THROW(parseRoutePolicy(""), Error);
  EXPECT_THROW(parseFallbackPolicy("never"), Error);
  for (const auto policy :
       {RoutePolicy::kAuto,
        RoutePolicy::kShm,
        RoutePolicy::kRdma,
        RoutePolicy::kTcp,
        RoutePolicy::kGloo}) {
    EXPECT_EQ(parseRoutePolicy(routePolicyName(policy)), policy);
  }
}

} // namespace
} // namespace dlslime
