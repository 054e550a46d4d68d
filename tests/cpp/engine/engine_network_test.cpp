// Engines that count as being on different hosts: connected over TCP.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/random.h"
#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/listener.h"
#include "engine/bootstrap/wire_records.h"
#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/peers/initiator.h"

namespace dlslime::testing {
namespace {

// A host for each rank.
Config onHost(int rank) {
  Config config;
  config.rdma.enabled = false;
  config.hostId = "host " + std::to_string(rank);
  config.interfaces = "=lo";
  return config;
}

class EngineNetwork : public ::testing::Test {
 protected:
  static Cluster::Options options() {
    return [](GroupOptions& group) { group.timeout = milliseconds(20000); };
  }
  static AddressRecord recordOf(Cluster& world, int rank) {
    return decodeAddress(*world.rendezvous("first")->tryGet(addressKey(rank)));
  }
  // Returns a stranger's socket, connected to the record's first address, with
  // `bytes` sent.
  static ControlSocket knock(const AddressRecord& record, ByteSpan bytes) {
    auto socket = ControlSocket::startConnecting(record.addresses.front());
    EXPECT_TRUE(eventually([&] {
      try {
        socket.sendFrame(bytes);
        return true;
      } catch (const Error&) {
        return false; // not connected yet
      }
    }));
    return socket;
  }
  // Changes the addresses in the record read by peers.
  static void readdress(
      Cluster& world,
      int rank,
      const std::function<void(std::vector<std::string>&)>& change) {
    auto record = recordOf(world, rank);
    change(record.addresses);
    world.rendezvous("first")->set(addressKey(rank), encode(record));
  }

  LogCapture log;
};

TEST_F(EngineNetwork, RanksOfThreeHostsReachEachOther) {
  Cluster world(3, onHost, options());
  for (const int from : {0, 1, 2}) {
    for (const int to : {0, 1, 2}) {
      if (from != to) {
        EXPECT_TRUE(world.passes(from, to, 100000)) << from << " to " << to;
      }
    }
  }
  const auto report = world[0].engine->report(*world[0].group);
  EXPECT_EQ(report.at(0).route, "tcp");
  EXPECT_GE(log.count("shm: on another host"), 1U) << log.all();
}

TEST_F(EngineNetwork, BothEndsAtOnceMakeOneConnection) {
  for (int round = 0; round < 20; ++round) {
    Cluster world(2, onHost, options());
    std::vector<BufferPtr> all;
    for (const int rank : {0, 1}) {
      all.push_back(world[rank].send(1 - rank, 1, pattern(1000)));
      all.push_back(world[rank].receive(1 - rank, 1, 1000));
    }
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(world[static_cast<int>(i / 2)].wait(all[i]));
      EXPECT_TRUE(all[i]->status().ok()) << all[i]->status().message();
    }
    EXPECT_EQ(world[0].engine->connections(), 1U);
    EXPECT_EQ(world[1].engine->connections(), 1U);
  }
}

TEST_F(EngineNetwork, AddressesThatDoNotAnswerAreSkipped) {
  Cluster world(2, onHost, options());
  // A port without a listener.
  const auto closed = Listener::onTheNetwork("=lo").names().front();
  readdress(world, 1, [&](auto& addresses) {
    addresses.insert(addresses.begin(), {closed, "not an address"});
  });
  EXPECT_TRUE(world.passes(0, 1));
}

// Private addresses exist on many hosts: a stranger may answer.
TEST_F(EngineNetwork, StrangerAtAnAddressIsSkipped) {
  Cluster world(2, onHost, options());
  const auto own = recordOf(world, 0).addresses.front();
  readdress(world, 1, [&](auto& addresses) {
    addresses.insert(addresses.begin(), own);
  });
  EXPECT_TRUE(world.passes(0, 1));
}

// The second socket takes the address at which the first got through.
TEST_F(EngineNetwork, AddressThatDoesNotAnswerIsTriedOnce) {
  Cluster world(2, onHost, options());
  auto listener = Listener::onTheNetwork("=lo");
  readdress(world, 1, [&](auto& addresses) {
    addresses.insert(addresses.begin(), listener.names().front());
  });
  const auto send = world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(eventually([&] { return listener.accept().has_value(); }));
  EXPECT_TRUE(world[0].wait(send));
  EXPECT_TRUE(send->status().ok()) << send->status().message();
  EXPECT_FALSE(listener.accept().has_value());
  const auto receive = world[1].receive(0, 1, 8);
  EXPECT_TRUE(world[1].wait(receive));
}

// A peer may answer kCrossed because of a connection already lost at the
// initiator's end, and then never connect.
TEST_F(EngineNetwork, InitiatorThatIsToldToWaitForThePeerAsksAgain) {
  Cluster world(2, onHost, options());
  auto listener = Listener::onTheNetwork("=lo");
  const auto real = recordOf(world, 1).addresses;
  readdress(world, 1, [&](auto& addresses) {
    addresses = {listener.names().front()};
  });
  const auto send = world[0].send(1, 1, pattern(8));
  for (int i = 0; i < 2; ++i) {
    std::optional<ControlSocket> peer;
    const auto came = [&] { return (peer = listener.accept()).has_value(); };
    ASSERT_TRUE(eventually(came)) << i;
    ASSERT_TRUE(
        answerBy(*peer, recordOf(world, 1).token, {Verdict::kCrossed, "", {}}))
        << i;
  }
  readdress(world, 1, [&](auto& addresses) { addresses = real; });
  const auto receive = world[1].receive(0, 1, 8);
  EXPECT_TRUE(world[1].wait(receive));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_TRUE(world[0].wait(send));
}

TEST_F(EngineNetwork, UnreachableRankIsNamedWithTheAddressesThatWereTried) {
  const auto brief = [](GroupOptions& group) {
    options()(group);
    group.timeout = milliseconds(5000);
  };
  Cluster world(2, onHost, brief);
  const auto closed = Listener::onTheNetwork("=lo").names().front();
  readdress(world, 1, [&](auto& addresses) { addresses = {closed}; });
  const auto send = world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[0].wait(send));
  const auto text = send->status().message();
  EXPECT_FALSE(send->status().ok());
  EXPECT_NE(
      text.find("no process answers at " + closed + " (errno 111"),
      std::string::npos)
      << text;
  readdress(world, 0, [](auto& addresses) { addresses.clear(); });
  const auto back = world[1].send(0, 1, pattern(8));
  ASSERT_TRUE(world[1].wait(back));
  EXPECT_NE(
      back->status().message().find("DLSLIME_SOCKET_IFNAME"), std::string::npos)
      << back->status().message();
}

TEST_F(EngineNetwork, HostWithoutThatInterfaceStartsAndSaysSo) {
  Cluster world(2, [](int rank) {
    auto config = onHost(rank);
    config.hostId = "one";
    config.interfaces = "=no-such-interface";
    return config;
  });
  EXPECT_TRUE(world.passes(0, 1)) << "one host needs no network";
  EXPECT_TRUE(recordOf(world, 0).addresses.empty());
  EXPECT_EQ(log.count("no-such-interface"), 2U) << log.all();
}

TEST_F(EngineNetwork, StrangersAtThePortAreRefusedByHostAndToldOfOnce) {
  Cluster world(2, onHost, options());
  ASSERT_TRUE(world.passes(0, 1));
  const auto record = recordOf(world, 0);
  for (int i = 0; i < 3; ++i) {
    auto socket = knock(record, pattern(500));
    EXPECT_TRUE(eventually([&] { return socket.ended(); }));
  }
  EXPECT_EQ(log.count("a connection from 127.0.0.1:"), 1U) << log.all();
  Initiator peer(
      ControlSocket::startConnecting(record.addresses.at(0)), record);
  pollfd writable{peer.socket.fd(), POLLOUT, 0};
  ASSERT_EQ(::poll(&writable, 1, 5000), 1);
  peer.secret = randomBytes(32);
  EXPECT_FALSE(peer.meet()) << "what has another token is not the peer";
  EXPECT_TRUE(world.passes(1, 0, 3 << 20));
}

TEST_F(EngineNetwork, PeerThatLeavesIsNoticedByItsSocket) {
  Cluster world(2, onHost, options());
  ASSERT_TRUE(world.passes(0, 1));
  const auto receive = world[0].receive(1, 5, 8);
  world.stop(1);
  ASSERT_TRUE(world[0].wait(receive));
  EXPECT_EQ(receive->status().code(), ErrorCode::kPeerFailed);
}

} // namespace
} // namespace dlslime::testing
