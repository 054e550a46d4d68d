#include "core/config.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/status.h"

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
      "DLSLIME_LINGER_MS",
      "DLSLIME_LOG"};
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
  EXPECT_EQ(config.linger, defaults.linger);
  EXPECT_EQ(config.logLevel, defaults.logLevel);
}

TEST_F(ConfigTest, EveryVariableIsRead) {
  setenv("DLSLIME_ROUTE", "gloo", 1);
  setenv("DLSLIME_FALLBACK", "forbid", 1);
  setenv("DLSLIME_SHM", "off", 1);
  setenv("DLSLIME_CMA", "off", 1);
  setenv("DLSLIME_EAGER_LIMIT", "1234", 1);
  setenv("DLSLIME_RING_BYTES", "65536", 1);
  setenv("DLSLIME_UNEXPECTED_LIMIT", "99", 1);
  setenv("DLSLIME_SPIN_US", "7", 1);
  setenv("DLSLIME_LINGER_MS", "8", 1);
  setenv("DLSLIME_LOG", "debug", 1);
  const auto config = Config::fromEnvironment();
  EXPECT_EQ(config.route, RoutePolicy::kGloo);
  EXPECT_EQ(config.fallback, FallbackPolicy::kForbid);
  EXPECT_FALSE(config.shm);
  EXPECT_FALSE(config.crossMemoryAttach);
  EXPECT_EQ(config.eagerLimitBytes, 1234U);
  EXPECT_EQ(config.ringBytes, 65536U);
  EXPECT_EQ(config.unexpectedLimitBytes, 99U);
  EXPECT_EQ(config.spin, microseconds(7));
  EXPECT_EQ(config.linger, milliseconds(8));
  EXPECT_EQ(config.logLevel, LogLevel::kDebug);
}

TEST_F(ConfigTest, BadValueNamesVariableAndValue) {
  for (const char* name : kNames) {
    for (const char* value :
         {"nonsense",
          "-1",
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
  for (const char* word : {"auto", "shm", "gloo"}) {
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
}

TEST_F(ConfigTest, RingBytesAreRefusedOrRoundedToPages) {
  setenv("DLSLIME_RING_BYTES", "100000", 1);
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
       {RoutePolicy::kAuto, RoutePolicy::kShm, RoutePolicy::kGloo}) {
    EXPECT_EQ(parseRoutePolicy(routePolicyName(policy)), policy);
  }
}

} // namespace
} // namespace dlslime
