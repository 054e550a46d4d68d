#include "engine/bootstrap/side_sockets.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "base/status.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// Returns an end of a socket pair, with early bytes; the far end is in `other`.
SideSocket makeSocket(UniqueFd& other) {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  other = UniqueFd(ends[1]);
  return {UniqueFd(ends[0]), pattern(3, 1)};
}

ErrorCode takeCode(SideSockets& all, const std::string& nonce, TimePoint end) {
  try {
    all.take(nonce, end);
    return ErrorCode::kOk;
  } catch (const Error& error) {
    return error.status().code();
  }
}

TEST(SideSockets, IsTakenWithWhatHasComeOnIt) {
  SideSockets all;
  UniqueFd other;
  all.expect("a");
  EXPECT_TRUE(all.bring("a", makeSocket(other)));
  const auto socket = all.take("a", never());
  EXPECT_TRUE(socket.fd);
  EXPECT_EQ(socket.early, pattern(3, 1));
}

TEST(SideSockets, IsAwaited) {
  SideSockets all;
  UniqueFd other;
  all.expect("a");
  std::thread bringing([&] { all.bring("a", makeSocket(other)); });
  EXPECT_TRUE(all.take("a", never()).fd);
  bringing.join();
}

TEST(SideSockets, NoThreadWaitsForOneThatIsNotNeeded) {
  SideSockets all;
  all.expect("a");
  std::thread forgetting([&] { all.forget("a"); });
  EXPECT_EQ(takeCode(all, "a", never()), ErrorCode::kTimeout);
  forgetting.join();
  all.forget("a");
}

TEST(SideSockets, UnexpectedOnesAreRefused) {
  SideSockets all;
  UniqueFd other;
  all.expect("a");
  EXPECT_FALSE(all.bring("b", makeSocket(other)));
  EXPECT_TRUE(all.bring("a", makeSocket(other)));
  EXPECT_FALSE(all.bring("a", makeSocket(other))) << "a second one";
  all.take("a", never());
  EXPECT_FALSE(all.bring("a", makeSocket(other))) << "taken already";
}

TEST(SideSockets, OneThatDoesNotComeIsATimeOut) {
  SideSockets all;
  all.expect("a");
  EXPECT_EQ(takeCode(all, "a", Clock::now()), ErrorCode::kTimeout);
}

TEST(SideSockets, WaitersEndWhenTheProcessDoes) {
  SideSockets all;
  all.expect("a");
  std::thread closing([&] { all.close(); });
  EXPECT_EQ(takeCode(all, "a", never()), ErrorCode::kCancelled);
  closing.join();
}

TEST(SideSockets, OfThoseThatNoThreadAwaitsTheOldestIsForgotten) {
  SideSockets all;
  UniqueFd other;
  for (int i = 0; i < 1000; ++i) {
    all.expect(std::to_string(i));
  }
  EXPECT_FALSE(all.bring("0", makeSocket(other)));
  EXPECT_TRUE(all.bring("999", makeSocket(other)));
}

} // namespace
} // namespace dlslime::testing
