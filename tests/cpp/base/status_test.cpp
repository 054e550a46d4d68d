#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/clock.h"
#include "base/random.h"

namespace dlslime {
namespace {

TEST(StatusTest, DefaultIsOkWithoutAMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kOk);
  EXPECT_EQ(status.message(), "");
}

TEST(StatusTest, ErrorKeepsCodeAndTextThroughCopies) {
  const Status first(ErrorCode::kTimeout, "too late");
  const Status copy = first;
  EXPECT_FALSE(copy.ok());
  EXPECT_EQ(copy.code(), ErrorCode::kTimeout);
  EXPECT_EQ(copy.message(), "too late");
  EXPECT_EQ(&copy.message(), &first.message());
}

TEST(StatusTest, OkCodeWithATextIsOk) {
  EXPECT_TRUE(Status(ErrorCode::kOk, "fine").ok());
}

TEST(StatusTest, MovedFromErrorLeavesTheOtherWhole) {
  Status first(ErrorCode::kTruncated, "long");
  const Status second = std::move(first);
  EXPECT_EQ(second.message(), "long");
}

TEST(StatusTest, EveryCodeHasItsName) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kExhausted); ++code) {
    EXPECT_NE(errorCodeName(static_cast<ErrorCode>(code)), "unknown") << code;
  }
  EXPECT_EQ(errorCodeName(static_cast<ErrorCode>(99)), "unknown");
}

TEST(StatusTest, ThrowErrnoNamesWhatFailedAndWhy) {
  try {
    throwErrno("cannot do it", EACCES);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot do it: errno 13 (Permission denied)");
    EXPECT_EQ(error.status().code(), ErrorCode::kUnavailable);
  }
}

TEST(ClockTest, DeadlineOfAHugeTimeoutIsNever) {
  EXPECT_EQ(deadlineAfter(milliseconds::max()), never());
  EXPECT_EQ(pollTimeoutMs(deadlineAfter(milliseconds::max())), -1);
}

TEST(ClockTest, PollTimeoutIsNeverShorterThanTheDeadline) {
  for (int us = 1; us < 3000; us += 37) {
    const auto when = Clock::now() + microseconds(us);
    const int timeout = pollTimeoutMs(when);
    EXPECT_GE(Clock::now() + milliseconds(timeout), when);
  }
  EXPECT_EQ(pollTimeoutMs(Clock::now() - milliseconds(5)), 0);
  EXPECT_EQ(pollTimeoutMs(TimePoint{}), 0);
}

TEST(ClockTest, FarDeadlineFitsPoll) {
  EXPECT_EQ(pollTimeoutMs(Clock::now() + std::chrono::hours(10000)), 1000000);
}

TEST(RandomTest, BytesDifferFromCallToCall) {
  EXPECT_EQ(randomBytes(0).size(), 0U);
  EXPECT_EQ(randomBytes(1000).size(), 1000U);
  EXPECT_NE(randomBytes(16), randomBytes(16));
}

TEST(RandomTest, HexWritesTwoDigitsPerByte) {
  EXPECT_EQ(hex(Bytes{std::byte{0}, std::byte{0xaf}}), "00af");
  EXPECT_EQ(hex({}), "");
}

TEST(RandomTest, SecretsAreEqualOnlyIfAllBytesAre) {
  Bytes left = randomBytes(32);
  Bytes right = left;
  EXPECT_TRUE(equalSecrets(left, right));
  right[31] ^= std::byte{1};
  EXPECT_FALSE(equalSecrets(left, right));
  EXPECT_FALSE(equalSecrets(left, ByteSpan(left).first(31)));
  EXPECT_FALSE(equalSecrets(left, {}));
}

} // namespace
} // namespace dlslime
