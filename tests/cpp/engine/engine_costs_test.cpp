// Costs grow in proportion to the number of operations, and no faster.
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <unordered_map>

#include "engine/two_sided/matcher.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/scripted_connection.h"
#include "fakes/peers/test_transfer.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// Sixteen times the number takes 16 times as long, or 256 times if each looks
// at all the rest; the limit lies between.
constexpr size_t kFew = 500, kMany = 16 * kFew;
constexpr double kMostRatio = 64;
constexpr int kTries = 3;

// Returns the processor time of the thread, the least of some tries; each try
// is prepared anew.
double secondsOf(const std::function<std::function<void()>()>& prepare) {
  double least = 1e9;
  for (int i = 0; i < kTries; ++i) {
    const auto work = prepare();
    const auto now = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
    };
    const double before = now();
    work();
    least = std::min(least, now() - before);
  }
  return least;
}

// A process with operations begun, whose peer does not answer.
struct Stuck {
  Stuck() {
    auto made = std::make_unique<ScriptedConnection>();
    connection = made.get();
    channel = process.connect(std::move(made), peer);
    group = process.join(0, 2);
    process.reach(*group, 1, channel, 7);
    process.groupRegistry.onGroupMessage(
        channel, wire::encode(wire::Joined{group->id(), 1, 0, 7}));
    local =
        process.regions.add({memory.data(), memory.size()}, "local", nullptr);
  }
  RegionHandle remote(uint64_t id) const {
    RegionHandle handle;
    handle.instance = peer;
    handle.id = id;
    handle.secret = id;
    handle.address = 0x1000;
    handle.size = memory.size();
    return handle;
  }
  std::shared_ptr<TestTransfer> read(uint64_t region) {
    auto made = TestTransfer::readFrom(1, local, remote(region), {{0, 0, 8}});
    process.send(*group, made);
    return made;
  }
  void resolve(uint64_t region) {
    wire::Resolved resolved;
    resolved.region = region;
    resolved.size = memory.size();
    resolved.memory.address = 0x1000;
    channel->parts()->initiator.onResolved(resolved);
    process.settle();
  }
  void cancel(const OperationPtr& operation) {
    process.cancel(
        *group, operation, Status(ErrorCode::kCancelled, "taken back"));
  }

  Bytes peer = Bytes(kInstanceBytes, std::byte{9});
  Bytes memory = Bytes(64);
  Endpoint process{{16, 1 << 30}};
  ScriptedConnection* connection = nullptr;
  std::shared_ptr<PeerChannel> channel;
  std::shared_ptr<Group> group;
  RegionPtr local;
};

using Work = std::function<std::function<void()>(size_t count)>;
struct Case {
  const char* name;
  Work work;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

class EngineCosts : public ::testing::TestWithParam<Case> {};

TEST_P(EngineCosts, GrowWithTheNumberOfThem) {
  const auto& work = GetParam().work;
  const double few = secondsOf([&] { return work(kFew); });
  const double many = secondsOf([&] { return work(kMany); });
  EXPECT_LT(many / few, kMostRatio)
      << kFew << " take " << few << " s, " << kMany << " " << many << " s";
}

std::function<void()> firstUseOfRegions(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  for (size_t i = 1; i <= count; ++i) {
    stuck->read(i);
  }
  return [stuck, count] {
    for (size_t i = 1; i <= count; ++i) {
      stuck->resolve(i);
    }
  };
}

std::function<void()> readsTakenBack(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  std::vector<OperationPtr> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(stuck->read(1));
  }
  return [stuck, all] {
    for (const auto& one : all) {
      stuck->cancel(one);
    }
  };
}

std::function<void()> receivesTakenBackLastFirst(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  std::vector<OperationPtr> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(makeReceive(1, 3, 8));
    stuck->process.receive(*stuck->group, all.back());
  }
  return [stuck, all] {
    for (auto it = all.rbegin(); it != all.rend(); ++it) {
      stuck->cancel(*it);
    }
  };
}

std::function<void()> sendsTakenBackLastFirst(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  stuck->connection->full = true;
  std::vector<OperationPtr> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(makeSend(1, 3, Bytes(8)));
    stuck->process.send(*stuck->group, all.back());
  }
  return [stuck, all] {
    for (auto it = all.rbegin(); it != all.rend(); ++it) {
      stuck->cancel(*it);
    }
  };
}

std::function<void()> listOfPendingReads(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  for (size_t i = 0; i < count; ++i) {
    stuck->read(1);
  }
  return [stuck, count] { EXPECT_EQ(stuck->group->pending().size(), count); };
}

std::function<void()> readsWhosePeerDies(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  for (size_t i = 0; i < count; ++i) {
    stuck->read(1);
  }
  return [stuck] {
    stuck->channel->fail(Status(ErrorCode::kPeerFailed, "on purpose"));
    stuck->process.settle();
  };
}

// A peer may take announcements back without end.
std::function<void()> announcementsTakenBackLastFirst(size_t count) {
  const auto matcher = std::make_shared<Matcher>(2);
  for (size_t id = 0; id < count; ++id) {
    Arrival arrival;
    arrival.source = 1;
    arrival.announced = true;
    arrival.id = id;
    matcher->addArrival(std::move(arrival));
  }
  return [matcher, count] {
    for (size_t id = count; id-- > 0;) {
      ASSERT_TRUE(matcher->removeArrival(1, 0, nullptr, id));
    }
  };
}

// A peer chooses the tags: here all tags would fall into a single bucket, but
// for the seed.
std::function<void()> messagesOfChosenTags(size_t count) {
  std::unordered_map<uint64_t, int> table;
  for (size_t i = 0; i < count; ++i) {
    table[i];
  }
  const auto buckets = table.bucket_count();
  const auto tags = std::make_shared<std::vector<uint32_t>>();
  for (uint32_t tag = 0; tags->size() < count; ++tag) {
    uint64_t key = (uint64_t{1} << 32 | tag) * 0x9e3779b97f4a7c15ULL;
    key ^= key >> 32;
    if (key % buckets == 0) {
      tags->push_back(tag);
    }
  }
  return [tags] {
    Matcher matcher(2);
    for (const auto tag : *tags) {
      Arrival arrival;
      arrival.source = 1;
      arrival.tag = tag;
      matcher.addArrival(std::move(arrival));
    }
  };
}

// The peer gives memory back while its reads of different memory are under way.
std::function<void()> memoryGivenBack(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  const auto read = stuck->local->handle();
  const auto other = stuck->process.regions.add(
      {stuck->memory.data(), stuck->memory.size()}, "other", nullptr);
  const auto tell =
      [stuck, sequence = std::make_shared<uint64_t>()](
          MessageType type, const RegionHandle& region, uint64_t id) {
        MessageHeader header;
        header.type = type;
        header.sequence = ++*sequence;
        header.id = id;
        header.address = region.secret;
        header.offset = region.id;
        stuck->channel->events().onMessage(header, {});
      };
  stuck->connection->full = true;
  tell(MessageType::kResolve, read, read.id);
  for (size_t id = 0; id < count; ++id) {
    tell(MessageType::kGetRequest, read, id);
  }
  return [tell, count, stuck, handle = other->handle(), other] {
    for (size_t i = 0; i < count; ++i) {
      tell(MessageType::kResolve, handle, handle.id);
      tell(MessageType::kKeyRevoked, handle, handle.id);
    }
    EXPECT_TRUE(stuck->channel->alive());
  };
}

// Regions to register with a NIC still busy with the first.
std::function<void()> regionsToEnroll(size_t count) {
  const auto stuck = std::make_shared<Stuck>();
  std::vector<RegionPtr> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(stuck->process.regions.add(
        {stuck->memory.data(), stuck->memory.size()}, "one", nullptr));
  }
  return [stuck, all] {
    for (const auto& region : all) {
      stuck->process.regions.registerLater(region, nullptr);
    }
    stuck->process.regions.takeWanted();
  };
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    EngineCosts,
    ::testing::Values(
        Case{"RegionsUsedForTheFirstTime", firstUseOfRegions},
        Case{"ReadsTakenBack", readsTakenBack},
        Case{"ReceivesTakenBackLastFirst", receivesTakenBackLastFirst},
        Case{"SendsTakenBackLastFirst", sendsTakenBackLastFirst},
        Case{
            "AnnouncementsTakenBackLastFirst",
            announcementsTakenBackLastFirst},
        Case{"MessagesOfChosenTags", messagesOfChosenTags},
        Case{"TheListOfPendingReads", listOfPendingReads},
        Case{"ReadsWhosePeerDies", readsWhosePeerDies},
        Case{"MemoryGivenBack", memoryGivenBack},
        Case{"RegionsToEnroll", regionsToEnroll}),
    [](const auto& given) { return std::string(given.param.name); });

} // namespace
} // namespace dlslime::testing
