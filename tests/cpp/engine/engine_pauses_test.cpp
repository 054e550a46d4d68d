// Unreachable peers: tried again after pauses, and logged once.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/listener.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/endpoint.h"
#include "fakes/cluster.h"
#include "fakes/log_capture.h"

namespace {
std::atomic<int> dialled{0};
} // namespace

// Replaces the C library's function, and counts.
extern "C" int connect(int fd, const sockaddr* name, socklen_t size) {
  ++dialled;
  return static_cast<int>(syscall(SYS_connect, fd, name, size));
}

namespace dlslime::testing {
namespace {

// With pauses of up to 50 ms about 30 tries fit into the first second, fewer on
// a busy machine; without pauses there would be thousands.
constexpr milliseconds kWatched{1000};
constexpr int kMostTries = 100;
constexpr size_t kMostLines = 4;

class EnginePauses : public ::testing::TestWithParam<bool> {
 protected:
  static bool oneHost() {
    return GetParam();
  }
  static Config config(int rank) {
    Config made;
    made.rdma.enabled = false;
    made.interfaces = "=lo";
    if (!oneHost()) {
      made.hostId = "host " + std::to_string(rank);
    }
    return made;
  }
  static Cluster::Options options() {
    return [](GroupOptions& group) { group.timeout = milliseconds(60000); };
  }
  static AddressRecord recordOf(Cluster& world, int rank) {
    return decodeAddress(*world.rendezvous("first")->tryGet(addressKey(rank)));
  }
  // Makes rank 1's record lead to the place of `there`.
  static void lead(Cluster& world, const AddressRecord& there) {
    auto record = recordOf(world, 1);
    record.addresses = there.addresses;
    record.socketName = there.socketName;
    record.joined = 0; // as in an earlier life
    world.rendezvous("first")->set(addressKey(1), encode(record));
  }
  // Returns the number of connection attempts during kWatched.
  static int tries(const std::function<void()>& meanwhile = {}) {
    const int before = dialled;
    for (const auto end = deadlineAfter(kWatched); Clock::now() < end;) {
      if (meanwhile) {
        meanwhile();
      }
      std::this_thread::sleep_for(microseconds(200));
    }
    return dialled - before;
  }

  LogCapture log;
};

TEST_P(EnginePauses, PeerThatHangsUpIsTriedAgainAfterAPause) {
  Cluster world(2, config, options());
  auto listener =
      oneHost() ? Listener::onThisHost() : Listener::onTheNetwork("=lo");
  auto there = recordOf(world, 1);
  there.addresses = listener.names();
  there.socketName = listener.names().front();
  lead(world, there);
  const auto send = world[0].send(1, 1, pattern(8));
  const int count = tries([&] { listener.accept(); }); // accepts and drops
  EXPECT_GE(count, 1) << "it is tried again";
  EXPECT_LT(count, kMostTries);
  EXPECT_LE(log.count(""), kMostLines) << "of " << count << " tries";
  EXPECT_FALSE(send->done());
}

// A record of an earlier life, whose address belongs to a different process by
// now.
TEST_P(EnginePauses, StrangerIsAskedAgainAfterAPauseAndSaysSoOnce) {
  Cluster world(3, config, options());
  lead(world, recordOf(world, 2));
  const auto send = world[0].send(1, 1, pattern(8));
  EXPECT_LT(tries(), kMostTries);
  EXPECT_LE(log.count("meant for a different process"), kMostLines);
  EXPECT_LE(log.count("go over TCP"), kMostLines);
  EXPECT_FALSE(send->done());
}

// An address without a listener fails at once, also on the local host.
TEST_P(EnginePauses, AddressWithoutAListenerIsTriedAgainAfterAPause) {
  Cluster world(2, config, options());
  auto there = recordOf(world, 1);
  {
    const auto gone =
        oneHost() ? Listener::onThisHost() : Listener::onTheNetwork("=lo");
    there.addresses = gone.names();
    there.socketName = gone.names().front();
  }
  lead(world, there);
  const auto send = world[0].send(1, 1, pattern(8));
  EXPECT_LT(tries(), kMostTries);
  EXPECT_LE(log.count(""), kMostLines);
  EXPECT_FALSE(send->done());
}

// A newer record must not wait for pauses due to the older record.
TEST_P(EnginePauses, RankThatComesInItsPlaceIsReached) {
  Cluster world(2, config, options());
  const auto real = recordOf(world, 1);
  auto there = real;
  {
    const auto gone =
        oneHost() ? Listener::onThisHost() : Listener::onTheNetwork("=lo");
    there.addresses = gone.names();
    there.socketName = gone.names().front();
  }
  lead(world, there);
  const auto send = world[0].send(1, 1, pattern(8));
  EXPECT_FALSE(world[0].engine->wait(*send, milliseconds(200)));
  lead(world, real);
  const auto receive = world[1].receive(0, 1, 8);
  ASSERT_TRUE(world[1].wait(receive));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
}

INSTANTIATE_TEST_SUITE_P(
    ByWhere,
    EnginePauses,
    ::testing::Bool(),
    [](const auto& given) {
      return std::string(given.param ? "OnThisHost" : "OnAnother");
    });

class EngineEndpoints : public ::testing::Test {
 protected:
  // Returns an engine of the host `name`, reachable at `interfaces`.
  static std::shared_ptr<Engine> onHost(
      const std::string& name,
      const std::string& interfaces) {
    Config made;
    made.rdma.enabled = false;
    made.hostId = name;
    made.interfaces = interfaces;
    return std::make_shared<Engine>(made);
  }
  // Returns the outcome of a send between two endpoints.
  static Status tell(
      const std::shared_ptr<Engine>& from,
      const std::shared_ptr<Engine>& to) {
    Endpoint here(from, {}), there(to, {});
    here.connect(there.address());
    there.connect(here.address());
    const auto sent = makeSend(here.peer(), 1, pattern(8));
    from->send(*here.group(), sent);
    return from->wait(*sent, deadlineAfter(milliseconds(10000)))
        ? sent->status()
        : Status(ErrorCode::kTimeout, "it never fails");
  }

  LogCapture log;
};

TEST_F(EngineEndpoints, WithoutAnAddressFailAtOnce) {
  const auto one = onHost("one", "=lo"), other = onHost("other", "=none");
  const auto before = log.count("");
  const auto status = tell(one, other);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable) << status.message();
  EXPECT_LE(log.count(""), before + 1) << "lines";
}

TEST_F(EngineEndpoints, OnTwoHostsWithoutNicsGoByTcpAndSayWhy) {
  const auto one = onHost("one", "=lo"), other = onHost("other", "=lo");
  const auto status = tell(one, other);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GE(log.count("go over TCP"), 1U) << log.all();
  EXPECT_EQ(log.count("rdma: "), log.count("go over TCP")) << log.all();
}

} // namespace
} // namespace dlslime::testing
