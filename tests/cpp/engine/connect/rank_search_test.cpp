// What the log and the operations say about ranks not reached.
#include "engine/connect/rank_search.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/listener.h"
#include "engine/bootstrap/wire_records.h"
#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/status_of.h"

namespace dlslime::testing {
namespace {

constexpr int kRanks = 5;
constexpr const char* kGroup = "half";
constexpr const char* kMissing =
    "its address is not in the store yet: it has "
    "not called init_process_group";

// Rank 0 of a group that no other rank has joined yet.
class RankSearchTest : public ::testing::Test {
 protected:
  std::shared_ptr<Group> join(int rank, const std::string& name = kGroup) {
    GroupOptions options;
    options.name = name;
    options.rank = rank;
    options.size = kRanks;
    options.timeout = kAnHour;
    options.rendezvous = store;
    joined.emplace_back(world[rank].engine, world[rank].engine->join(options));
    return joined.back().second;
  }
  ~RankSearchTest() override {
    for (const auto& [engine, member] : joined) {
      engine->abort(*member, Status(ErrorCode::kCancelled, "the test is over"));
    }
  }
  BufferPtr sendTo(int rank) {
    auto send = makeSend(rank, 1, pattern(8));
    world[0].engine->send(*group, send);
    return send;
  }
  // Returns the beginning of a note left now.
  static std::string now() {
    return "DLSLIME-FAILED:" + std::to_string(std::time(nullptr)) + ":";
  }
  void leaveNote(int rank, const std::string& text) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
    store->set(addressKey(rank), Bytes(bytes, bytes + text.size()));
  }
  // Returns the record of a process of another host.
  AddressRecord recordOf(int rank) {
    auto record =
        decodeAddress(*world.rendezvous("first")->tryGet(addressKey(rank)));
    record.identity = makeIdentity("another host");
    return record;
  }
  // Waits for a text about the state of a pending operation's link.
  bool saysOf(const Operation& operation, const std::string& text) {
    return eventually([&] {
      const auto told = world[0].engine->describeLink(*group, operation);
      return told.find(text) != std::string::npos;
    });
  }
  ::testing::AssertionResult logs(const std::string& text) {
    return eventually([&] { return log.count(text) > 0; })
        ? ::testing::AssertionSuccess()
        : ::testing::AssertionFailure() << log.all();
  }
  std::string nameOf(int rank) {
    return group->nameOf(rank);
  }

  const LogCapture log;
  const std::shared_ptr<MapRendezvous> store =
      std::make_shared<MapRendezvous>();
  Cluster world{kRanks};
  std::vector<std::pair<std::shared_ptr<Engine>, std::shared_ptr<Group>>>
      joined;
  const std::shared_ptr<Group> group = join(0);
};

TEST_F(RankSearchTest, RanksOfOneCauseAreToldOfTogether) {
  auto record = recordOf(2);
  record.addresses = {"127.0.0.1:1"}; // which refuses connections
  store->set(addressKey(2), encode(record));
  // Needs all ranks at once.
  const auto receive = makeReceive(BufferOperation::kAnySource, 1, 8);
  world[0].engine->receive(*group, receive);
  EXPECT_TRUE(logs(
      nameOf(1) + " has not been reached for 10 s: " + kMissing +
      ", or has failed there (see its output). The same holds for 2 more of "
      "the group's ranks"));
  EXPECT_TRUE(logs(
      nameOf(2) +
      " has not been reached for 10 s: no process answers at "
      "127.0.0.1:1 (errno 111 (Connection refused))"));
  EXPECT_EQ(log.count("has not been reached"), 2U) << log.all();
}

// Calls in a row are late one after the other.
TEST_F(RankSearchTest, RanksOfCallsInARowAreToldOfTogether) {
  sendTo(1);
  std::this_thread::sleep_for(milliseconds(100));
  sendTo(3);
  EXPECT_TRUE(logs("The same holds for 1 more of the group's ranks"));
  EXPECT_EQ(log.count("has not been reached"), 1U) << log.all();
}

// Each takes some seconds, and until the last has failed no try is over.
TEST_F(RankSearchTest, RankWithSilentAddressesIsNotSaidToBeMissing) {
  std::vector<Listener> silent;
  auto record = recordOf(1);
  record.addresses.clear();
  for (int i = 0; i < 3; ++i) {
    silent.push_back(Listener::onTheNetwork("=lo"));
    record.addresses.push_back(silent.back().names().front());
  }
  EXPECT_TRUE(saysOf(*sendTo(1), "its address is not in the store"));
  store->set(addressKey(1), encode(record));
  EXPECT_TRUE(logs(nameOf(1) + " has not been reached"));
  EXPECT_EQ(log.count("its address is not in the store"), 0U) << log.all();
  EXPECT_EQ(log.count(record.addresses.front()), 1U) << log.all();
}

// torch's names of groups are numbers.
TEST_F(RankSearchTest, RanksOfTwoGroupsAreToldOfApart) {
  const std::shared_ptr<Group> groups[] = {join(0, "1"), join(0, "2")};
  const BufferPtr sends[] = {makeSend(1, 1, {}), makeSend(1, 1, {})};
  for (int i : {0, 1}) {
    world[0].engine->send(*groups[i], sends[i]);
  }
  for (const auto& each : groups) {
    EXPECT_TRUE(logs(each->nameOf(1) + " has not been reached"));
  }
  EXPECT_EQ(log.count("The same holds"), 0U) << log.all();
}

TEST_F(RankSearchTest, EachRankIsToldOfOnce) {
  sendTo(1);
  EXPECT_TRUE(logs(nameOf(1) + " has not been reached"));
  sendTo(1);
  sendTo(2); // by its warning, 10 s more have passed
  EXPECT_TRUE(logs(nameOf(2) + " has not been reached"));
  EXPECT_EQ(log.count("has not been reached"), 2U) << log.all();
  EXPECT_EQ(log.count("The same holds"), 0U) << log.all();
}

TEST_F(RankSearchTest, ReachedRankIsNotToldOf) {
  const auto other = join(1);
  const auto receive = makeReceive(0, 1, 8);
  world[1].engine->receive(*other, receive);
  const auto send = sendTo(1);
  EXPECT_TRUE(world[0].wait(send));
  sendTo(2); // later than the first
  EXPECT_TRUE(logs(nameOf(2) + " has not been reached"));
  EXPECT_EQ(log.count(nameOf(1) + " has"), 0U) << log.all();
}

TEST_F(RankSearchTest, RankThatCouldNotBeginFailsWithItsReason) {
  leaveNote(1, now() + "ImportError: built for \x1b torch 2.1");
  const auto send = sendTo(1);
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(send->status().code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(mentions(
      send->status(),
      "can't be reached: it could not begin: ImportError: built for \\x1b "
      "torch 2.1"))
      << send->status().message();
}

// The next process of the rank may take more than some seconds to begin.
TEST_F(RankSearchTest, NoteOfAnEarlierJobEndsNothingSoon) {
  leaveNote(1, "DLSLIME-FAILED:1700000000:ValueError: DLSLIME_RING_BYTES");
  const auto send = sendTo(1);
  EXPECT_TRUE(logs(nameOf(1) + " has not been reached for 10 s: it could not"));
  EXPECT_FALSE(send->done());
}

TEST_F(RankSearchTest, RankThatBeginsAfterAllIsReached) {
  leaveNote(1, now() + "ValueError: DLSLIME_RING_BYTES");
  const auto send = sendTo(1);
  EXPECT_TRUE(saysOf(*send, "it could not begin: ValueError"));
  const auto other = join(1);
  const auto receive = makeReceive(0, 1, 8);
  world[1].engine->receive(*other, receive);
  EXPECT_TRUE(world[0].wait(send));
  EXPECT_TRUE(send->status().ok()) << send->status().message();
}

} // namespace
} // namespace dlslime::testing
