#include "transports/shm/pulls.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "fakes/world.h"
#include "transports/shm/assists.h"

namespace dlslime::shm {
namespace {

using ::dlslime::testing::pattern;

class Recorder final : public ConnectionEvents {
 public:
  void onMessage(const MessageHeader& /*header*/, ByteSpan /*bytes*/) override {
  }
  void onPulled(uint64_t pullId, const Status& status) override {
    ended.emplace_back(pullId, status);
  }
  std::vector<std::pair<uint64_t, Status>> ended;
};

// Both ends of the copying in a single process, which may read its own memory.
class PullsTest : public ::testing::Test {
 protected:
  void run(CopyJob& job) {
    job.error = job.run(job);
  }
  void pullAlone() {
    CopyJob job;
    while (pulls.claim(job)) {
      run(job);
      pulls.finish(job);
    }
  }
  void start(uint64_t pullId, uint64_t peerId, const Bytes& from, Bytes& to) {
    assists.expose(peerId, {const_cast<std::byte*>(from.data()), from.size()});
    pulls.start(
        pullId,
        peerId,
        {reinterpret_cast<uint64_t>(from.data()), {}},
        {to.data(), to.size()});
  }
  bool inside(const CopyJob& job, const Bytes& bytes) const {
    return job.local >= bytes.data() &&
        job.local + job.size <= bytes.data() + bytes.size();
  }

  CopyDesk desks[kDesks] = {};
  Pulls pulls{desks, static_cast<uint32_t>(getpid())};
  Assists assists{desks, static_cast<uint32_t>(getpid())};
  Recorder events;
};

TEST_F(PullsTest, ReceiverAloneFetchesEverything) {
  const Bytes source = pattern((3 << 20) + 77);
  Bytes destination(source.size());
  start(1, 11, source, destination);
  pullAlone();
  EXPECT_TRUE(pulls.poll(events));
  ASSERT_EQ(events.ended.size(), 1U);
  EXPECT_TRUE(events.ended[0].second.ok());
  EXPECT_EQ(destination, source);
}

TEST_F(PullsTest, BothEndsFetchEachTheirPieces) {
  const Bytes source = pattern(9 << 20);
  Bytes destination(source.size());
  start(1, 11, source, destination);
  CopyJob job;
  for (bool any = true; any;) {
    any = pulls.claim(job);
    if (any) {
      run(job);
      pulls.finish(job);
    }
    if (assists.claim(job)) {
      any = true;
      run(job);
      assists.finish(job);
    }
  }
  EXPECT_TRUE(pulls.poll(events));
  EXPECT_EQ(destination, source);
}

TEST_F(PullsTest, MoreMessagesThanDesksAllArrive) {
  std::vector<Bytes> sources;
  std::vector<Bytes> destinations;
  for (unsigned i = 0; i < 3 * kDesks; ++i) {
    sources.push_back(pattern(100000 + i * 5000, i));
    destinations.emplace_back(sources.back().size());
  }
  for (unsigned i = 0; i < sources.size(); ++i) {
    start(100 + i, 200 + i, sources[i], destinations[i]);
  }
  do {
    pullAlone();
  } while (pulls.poll(events));
  ASSERT_EQ(events.ended.size(), sources.size());
  EXPECT_EQ(destinations, sources);
}

TEST_F(PullsTest, AbandonedPullEndsOnlyWhenNeitherEndWritesAnyMore) {
  const Bytes source = pattern(4 << 20);
  Bytes destination(source.size());
  start(1, 11, source, destination);
  CopyJob theirs;
  ASSERT_TRUE(assists.claim(theirs));
  CopyJob ours;
  ASSERT_TRUE(pulls.claim(ours));
  pulls.abandon(1);
  EXPECT_FALSE(pulls.poll(events));
  pulls.finish(ours);
  EXPECT_FALSE(pulls.poll(events)) << "the sender still writes its piece";
  CopyJob none;
  EXPECT_FALSE(assists.claim(none));
  EXPECT_FALSE(pulls.claim(none));
  assists.finish(theirs);
  EXPECT_TRUE(pulls.poll(events));
  ASSERT_EQ(events.ended.size(), 1U);
  EXPECT_EQ(events.ended[0].second.code(), ErrorCode::kCancelled);
}

TEST_F(PullsTest, PullThatWaitsForADeskIsAbandonedAtOnce) {
  const Bytes source = pattern(1 << 20);
  std::vector<Bytes> destinations(kDesks + 1, Bytes(source.size()));
  for (unsigned i = 0; i <= kDesks; ++i) {
    start(i + 1, i + 11, source, destinations[i]);
  }
  pulls.abandon(kDesks + 1);
  EXPECT_TRUE(pulls.poll(events));
  ASSERT_EQ(events.ended.size(), 1U);
  EXPECT_EQ(events.ended[0].first, kDesks + 1);
}

TEST_F(PullsTest, DeadPeerEndsPullsOnceOurOwnCopiesHaveEnded) {
  const Bytes source = pattern(4 << 20);
  Bytes destination(source.size());
  start(1, 11, source, destination);
  CopyJob theirs;
  ASSERT_TRUE(assists.claim(theirs)); // and then the peer dies
  CopyJob ours;
  ASSERT_TRUE(pulls.claim(ours));
  pulls.endAll();
  EXPECT_FALSE(pulls.poll(events));
  pulls.finish(ours);
  EXPECT_TRUE(pulls.poll(events));
  EXPECT_EQ(events.ended.size(), 1U);
}

TEST_F(PullsTest, UnreadableSenderFailsTheMessageWithTheReason) {
  Bytes destination(1 << 20);
  pulls.start(1, 11, {16, {}}, {destination.data(), destination.size()});
  pullAlone();
  EXPECT_TRUE(pulls.poll(events));
  ASSERT_EQ(events.ended.size(), 1U);
  EXPECT_EQ(events.ended[0].second.code(), ErrorCode::kPeerFault);
  EXPECT_NE(
      events.ended[0].second.message().find("can't be read"), std::string::npos)
      << events.ended[0].second.message();
}

// The system call may be the first to see the sender's death.
TEST_F(PullsTest, SenderThatHasEndedIsAFailedPeer) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  Pulls of{desks, static_cast<uint32_t>(child)};
  Bytes destination(1 << 20);
  of.start(1, 11, {16, {}}, {destination.data(), destination.size()});
  CopyJob job;
  while (of.claim(job)) {
    run(job);
    of.finish(job);
  }
  EXPECT_TRUE(of.poll(events));
  ASSERT_EQ(events.ended.size(), 1U);
  EXPECT_EQ(events.ended[0].second.code(), ErrorCode::kPeerFailed);
}

// Permission to read is lost while two pieces are being copied.
TEST_F(PullsTest, RefusedReaderEndsAsDeniedOnceItsPiecesAreQuiet) {
  const Bytes source = pattern(4 << 20);
  Bytes destination(source.size());
  start(1, 11, source, destination);
  CopyJob first;
  CopyJob second;
  ASSERT_TRUE(pulls.claim(first));
  ASSERT_TRUE(pulls.claim(second));
  first.error = EPERM;
  pulls.finish(first);
  EXPECT_FALSE(pulls.poll(events));
  run(second);
  pulls.finish(second);
  EXPECT_TRUE(pulls.poll(events));
  ASSERT_EQ(events.ended.size(), 1U);
  EXPECT_EQ(events.ended[0].second.code(), ErrorCode::kDenied);
  EXPECT_FALSE(pulls.senderDenied());
}

TEST_F(PullsTest, RefusedWriterIsNotAskedAgain) {
  const Bytes source = pattern(4 << 20);
  Bytes destination(source.size());
  start(1, 11, source, destination);
  CopyJob job;
  ASSERT_TRUE(assists.claim(job));
  job.error = EACCES;
  assists.finish(job);
  pullAlone();
  EXPECT_TRUE(pulls.poll(events));
  ASSERT_EQ(events.ended.size(), 1U);
  EXPECT_EQ(events.ended[0].second.code(), ErrorCode::kDenied);
  EXPECT_TRUE(pulls.senderDenied());
}

// The sender's access word may still say granted, whatever a desk has reported.
TEST_F(PullsTest, SenderThatIsRefusedForEverIsAskedOnlyOnce) {
  const Bytes source = pattern(4 << 20);
  std::vector<Bytes> destinations(2, Bytes(source.size()));
  for (uint64_t i = 0; i < 2; ++i) {
    start(1 + i, 11 + i, source, destinations[i]);
    CopyJob job;
    while (assists.claim(job)) {
      job.error = EPERM;
      assists.finish(job);
    }
    EXPECT_TRUE(pulls.poll(events));
  }
  ASSERT_EQ(events.ended.size(), 2U);
  EXPECT_EQ(events.ended[0].second.code(), ErrorCode::kDenied);
  EXPECT_EQ(events.ended[1].second.code(), ErrorCode::kTransportFailed);
}

// The sender was to copy alone, and may not any more: pulls waiting for a desk
// end, too, and only pieces being copied are waited for.
TEST_F(PullsTest, WhenNeitherEndMayCopyAllPullsEndAsDenied) {
  const Bytes source = pattern(4 << 20);
  std::vector<Bytes> destinations(kDesks + 2, Bytes(source.size()));
  for (uint64_t i = 0; i < destinations.size(); ++i) {
    start(1 + i, 11 + i, source, destinations[i]);
  }
  CopyJob job;
  ASSERT_TRUE(assists.claim(job));
  pulls.denyAll();
  EXPECT_TRUE(pulls.poll(events));
  EXPECT_EQ(events.ended.size(), destinations.size() - 1);
  job.error = EPERM;
  assists.finish(job);
  EXPECT_TRUE(pulls.poll(events));
  ASSERT_EQ(events.ended.size(), destinations.size());
  for (const auto& [id, status] : events.ended) {
    EXPECT_EQ(status.code(), ErrorCode::kDenied);
  }
}

TEST_F(PullsTest, DeskForAnUnknownMessageIsRefusedByTheSender) {
  Bytes destination(1 << 20);
  pulls.start(1, 4711, {16, {}}, {destination.data(), destination.size()});
  CopyJob job;
  EXPECT_FALSE(assists.claim(job));
  EXPECT_NE(desks[0].error.load(), 0U);
}

TEST_F(PullsTest, DeskWithAnotherLengthIsRefusedByTheSender) {
  const Bytes source = pattern(1 << 20);
  Bytes destination(2 << 20);
  start(1, 11, source, destination);
  CopyJob job;
  EXPECT_FALSE(assists.claim(job));
}

// A desk lies in memory that the peer writes.
TEST_F(PullsTest, CorruptedDeskNeverMakesTheReceiverWriteOutside) {
  const Bytes source = pattern(1 << 20);
  for (uint64_t front = 0; front < 0xffff; front += 97) {
    Bytes destination(source.size());
    Pulls victim{desks, static_cast<uint32_t>(getpid())};
    victim.start(
        1,
        11,
        {reinterpret_cast<uint64_t>(source.data()), {}},
        {destination.data(), destination.size()});
    desks[0].word.store((uint64_t{0xffff} << 32) | (front << 16));
    CopyJob job;
    if (victim.claim(job)) {
      ASSERT_TRUE(inside(job, destination))
          << "piece " << front << " lies at offset "
          << job.local - destination.data() << " of " << destination.size();
    }
  }
}

TEST_F(PullsTest, CorruptedDeskLetsAllPullsEnd) {
  const Bytes source = pattern(1 << 20);
  Bytes first(source.size());
  Bytes second(source.size());
  start(1, 11, source, first);
  start(2, 12, source, second);
  desks[0].word.store((uint64_t{0xffff} << 32) | (uint64_t{5000} << 16));
  for (int i = 0; i < 10; ++i) {
    pullAlone();
    pulls.poll(events);
  }
  // The second pull may succeed or fail, but must end.
  ASSERT_EQ(events.ended.size(), 2U);
  for (const auto& [id, status] : events.ended) {
    EXPECT_TRUE(!status.ok() || (id == 2 && second == source));
  }
}

TEST_F(PullsTest, CorruptedDeskNeverMakesTheSenderReadOutside) {
  const Bytes source = pattern(1 << 20);
  Bytes destination(source.size());
  for (uint64_t back = 0; back < 0xffff; back += 97) {
    start(1, 11, source, destination);
    desks[0].word.store((uint64_t{0xffff} << 32) | back);
    CopyJob job;
    if (assists.claim(job)) {
      ASSERT_TRUE(inside(job, source));
      assists.finish(job);
    }
  }
}

} // namespace
} // namespace dlslime::shm
