#include "engine/bootstrap/net_address.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace dlslime {
namespace {

TEST(NetAddress, TextComesBack) {
  for (const char* text :
       {"10.9.0.1:4711", "255.255.255.255:65535", "[2001:db8::1]:1"}) {
    EXPECT_EQ(NetAddress::parse(text).text(), text);
  }
}

TEST(NetAddress, Ipv4PeersOfSocketsForBothLookLikeIpv4) {
  EXPECT_EQ(NetAddress::parse("[::ffff:10.9.0.2]:80").text(), "10.9.0.2:80");
}

TEST(NetAddress, AnythingElseIsRefusedWithItsText) {
  for (const std::string text :
       {"",
        ":",
        "10.9.0.1",
        "10.9.0.1:",
        "10.9.0.1:0",
        "10.9.0.1:65536",
        "10.9.0.1:123456",
        "10.9.0.1:-1",
        "10.9.0.1:+1",
        "10.9.0.1: 1",
        "10.9.0.1:1x",
        "10.9.0:1",
        "example.org:80",
        "2001:db8::1:80",
        "[2001:db8::1]",
        "[]:80",
        "[10.9.0.1]:80"}) {
    try {
      NetAddress::parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), ErrorCode::kPeerFailed);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos);
    }
  }
}

TEST(NetAddress, InterfacesAreSelectedAsNcclDoes) {
  EXPECT_TRUE(selectsInterface("", "anything"));
  EXPECT_TRUE(selectsInterface("eth,ib", "ib0"));
  EXPECT_TRUE(selectsInterface("eth", "eth1"));
  EXPECT_FALSE(selectsInterface("eth", "veth1"));
  EXPECT_FALSE(selectsInterface("=eth", "eth1"));
  EXPECT_TRUE(selectsInterface("=eth1,ib0", "ib0"));
  EXPECT_FALSE(selectsInterface("^docker,lo", "docker0"));
  EXPECT_TRUE(selectsInterface("^docker,lo", "eth0"));
  EXPECT_FALSE(selectsInterface("^=eth0", "eth0"));
  EXPECT_TRUE(selectsInterface("^=eth0", "eth01"));
}

TEST(NetAddress, OwnAddressesParseAndHaveNoLinkLocalOnes) {
  const auto loopback = ownAddresses("=lo");
  ASSERT_FALSE(loopback.empty());
  EXPECT_EQ(loopback.front(), "127.0.0.1");
  const auto usual = ownAddresses("");
  ASSERT_FALSE(usual.empty());
  for (const auto& address : usual) {
    const bool six = address.find(':') != std::string::npos;
    EXPECT_NO_THROW(
        NetAddress::parse((six ? "[" + address + "]" : address) + ":1"));
    EXPECT_NE(address.rfind("fe80:", 0), 0U) << address;
  }
  EXPECT_TRUE(ownAddresses("=no-such-interface").empty());
}

} // namespace
} // namespace dlslime
