#include "engine/record/flight_recorder.h"

#include <gtest/gtest.h>

#include <chrono>

#include "engine/record/times_report.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

using Kind = Operation::Kind;
using State = FlightRecord::State;

constexpr uint32_t kFirstInternalTag = 1U << 31;

BufferPtr operation(Kind kind, size_t size, int peer = 1, uint32_t tag = 0) {
  return std::make_shared<BufferOperation>(kind, peer, tag, Bytes(size));
}

class FlightRecorderTest : public ::testing::Test {
 protected:
  // Begins an operation.
  BufferPtr post(Kind kind, size_t size, int peer = 1, uint32_t tag = 0) {
    auto made = operation(kind, size, peer, tag);
    if (made->oneSided()) { // as of a Transfer, which has no memory of its own
      made->setResult(peer, size);
    }
    recorder.begin(*made);
    return made;
  }
  FlightLog log() const {
    return recorder.log(Ticks::nanoseconds());
  }
  uint64_t countOf(Kind kind) const {
    return recorder.times(kind).bytes.count();
  }

  FlightRecorder recorder;
};

TEST_F(FlightRecorderTest, NothingIsRecordedAtFirst) {
  EXPECT_TRUE(log().records.empty());
  EXPECT_EQ(countOf(Kind::kSend), 0U);
}

TEST_F(FlightRecorderTest, RecordSaysWhatWasPosted) {
  auto receive = operation(Kind::kReceive, 100, 3, 7);
  receive->groupKey = 55;
  receive->elementType = 6;
  recorder.begin(*receive);
  const auto records = log().records;
  ASSERT_EQ(records.size(), 1U);
  const auto& record = records[0];
  EXPECT_EQ(record.number, 1U);
  EXPECT_EQ(record.group, 55U);
  EXPECT_EQ(record.bytes, 100U);
  EXPECT_EQ(record.peer, 3);
  EXPECT_EQ(record.tag, 7U);
  EXPECT_EQ(record.kind, Kind::kReceive);
  EXPECT_EQ(record.state, State::kPosted);
  EXPECT_EQ(record.elementType, 6);
  EXPECT_EQ(record.ended, 0U);
  EXPECT_GT(record.posted, 0U);
}

TEST_F(FlightRecorderTest, EndIsNotedWithItsTime) {
  const auto send = post(Kind::kSend, 100);
  recorder.end(*send, {});
  const auto record = log().records.at(0);
  EXPECT_EQ(record.state, State::kDone);
  EXPECT_EQ(record.result, ErrorCode::kOk);
  EXPECT_GE(record.ended, record.posted);
}

// A message may be smaller than the memory, and come from any rank.
TEST_F(FlightRecorderTest, ReceiveFromAnySourceGetsItsSourceAndBytes) {
  const auto receive = post(Kind::kReceive, 1000, Operation::kAnySource);
  EXPECT_EQ(log().records.at(0).peer, Operation::kAnySource);
  EXPECT_EQ(log().records.at(0).bytes, 1000U);
  receive->setResult(2, 10);
  recorder.end(*receive, {});
  EXPECT_EQ(log().records.at(0).peer, 2);
  EXPECT_EQ(log().records.at(0).bytes, 10U);
  EXPECT_EQ(recorder.times(Kind::kReceive).bytes.sum(), 10U);
}

TEST_F(FlightRecorderTest, FailureIsRecordedAndNotCounted) {
  const auto receive = post(Kind::kReceive, 1000, Operation::kAnySource);
  recorder.end(*receive, Status(ErrorCode::kPeerFailed, "gone"));
  const auto record = log().records.at(0);
  EXPECT_EQ(record.state, State::kFailed);
  EXPECT_EQ(record.result, ErrorCode::kPeerFailed);
  EXPECT_EQ(record.peer, Operation::kAnySource) << "it has no source";
  EXPECT_EQ(record.bytes, 1000U);
  EXPECT_EQ(countOf(Kind::kReceive), 0U);
  EXPECT_EQ(recorder.times(Kind::kReceive).ticks[0].count(), 0U);
}

TEST_F(FlightRecorderTest, MessagesOfTheEngineAreLeftOut) {
  const auto own = post(Kind::kSend, 10, 1, kFirstInternalTag);
  const auto last = post(Kind::kSend, 10, 1, kFirstInternalTag - 1);
  recorder.end(*own, {});
  recorder.end(*last, {});
  ASSERT_EQ(log().records.size(), 1U);
  EXPECT_EQ(log().records.at(0).tag, kFirstInternalTag - 1);
  EXPECT_EQ(countOf(Kind::kSend), 1U);
}

TEST_F(FlightRecorderTest, OldestGoesWhenTheRingIsFull) {
  for (size_t i = 0; i < FlightRecorder::kMost + 10; ++i) {
    post(Kind::kSend, i);
  }
  const auto records = log().records;
  ASSERT_EQ(records.size(), FlightRecorder::kMost);
  for (size_t i = 0; i < records.size(); ++i) {
    ASSERT_EQ(records[i].number, i + 11) << "oldest first";
    ASSERT_EQ(records[i].bytes, i + 10);
  }
}

TEST_F(FlightRecorderTest, FullRingKeepsAllItHolds) {
  for (size_t i = 0; i < FlightRecorder::kMost; ++i) {
    post(Kind::kSend, 1);
  }
  EXPECT_EQ(log().records.size(), FlightRecorder::kMost);
  EXPECT_EQ(log().records.front().number, 1U);
}

TEST_F(FlightRecorderTest, EndOfALostRecordChangesNoOther) {
  const auto first = post(Kind::kReceive, 77);
  for (size_t i = 0; i < FlightRecorder::kMost; ++i) {
    post(Kind::kSend, 1);
  }
  recorder.end(*first, {});
  for (const auto& record : log().records) {
    ASSERT_EQ(record.state, State::kPosted);
    ASSERT_EQ(record.kind, Kind::kSend);
  }
  EXPECT_EQ(countOf(Kind::kReceive), 0U);
}

TEST_F(FlightRecorderTest, EndOfAnOperationNeverBegunIsIgnored) {
  const auto posted = post(Kind::kSend, 1);
  recorder.end(*operation(Kind::kSend, 1), {});
  EXPECT_EQ(log().records.size(), 1U);
  EXPECT_EQ(log().records.at(0).state, State::kPosted);
}

TEST_F(FlightRecorderTest, TimesAreKeptByKindAndSize) {
  constexpr size_t kSmall = 8 << 10, kLarge = 1 << 20;
  for (const size_t size :
       {size_t{0}, kSmall, kSmall + 1, kLarge, kLarge + 1}) {
    recorder.end(*post(Kind::kWrite, size), {});
  }
  const auto& times = recorder.times(Kind::kWrite);
  EXPECT_EQ(times.ticks[0].count(), 2U);
  EXPECT_EQ(times.ticks[1].count(), 2U);
  EXPECT_EQ(times.ticks[2].count(), 1U);
  EXPECT_EQ(times.bytes.count(), 5U);
  EXPECT_EQ(times.bytes.sum(), 2 * kSmall + 1 + 2 * kLarge + 1);
  EXPECT_EQ(countOf(Kind::kRead), 0U);
}

TEST_F(FlightRecorderTest, MomentsAreOfTheCalendar) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const auto before = now();
  post(Kind::kSend, 1);
  const auto all = log();
  const auto posted = all.epochOf(all.records.at(0).posted);
  constexpr int64_t kSlack = 1000000000; // the calendar may be set meanwhile
  EXPECT_GT(posted, before - kSlack);
  EXPECT_LE(posted, all.nowEpoch);
  EXPECT_EQ(all.epochOf(all.nowTicks), all.nowEpoch);
}

TEST_F(FlightRecorderTest, ReportNamesEachKindAndItsBuckets) {
  recorder.end(*post(Kind::kRead, 100), {});
  recorder.end(*post(Kind::kRead, 100), {});
  recorder.end(*post(Kind::kRead, 5000), {});
  const auto reports = reportTimes(recorder, 1);
  std::vector<std::string> kinds;
  for (const auto& report : reports) {
    kinds.emplace_back(report.kind);
  }
  EXPECT_EQ(
      kinds, (std::vector<std::string>{"send", "receive", "read", "write"}));
  const auto& bytes = reports[2].bytes;
  EXPECT_EQ(bytes.count, 3U);
  EXPECT_EQ(bytes.sum, 5200U);
  using Buckets = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(bytes.buckets, (Buckets{{104, 2}, {5120, 1}}));
  EXPECT_EQ(reports[2].nanoseconds[0].count, 3U);
  EXPECT_TRUE(reports[0].bytes.buckets.empty());
}

TEST_F(FlightRecorderTest, ReportHasTimesInNanoseconds) {
  recorder.end(*post(Kind::kSend, 1), {});
  const auto ticks = recorder.times(Kind::kSend).ticks[0].sum();
  const auto report = reportTimes(recorder, 2).at(0).nanoseconds[0];
  EXPECT_EQ(report.sum, 2 * ticks);
  ASSERT_EQ(report.buckets.size(), 1U);
  EXPECT_GT(report.buckets[0].first, 2 * ticks);
}

} // namespace
} // namespace dlslime::testing
