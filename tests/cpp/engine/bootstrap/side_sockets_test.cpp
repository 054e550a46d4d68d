#include "engine/bootstrap/side_sockets.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "base/status.h"
#include "engine/bootstrap/listener.h"
#include "fakes/peers/initiator.h"
#include "fakes/status_of.h"
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

// The far end of side sockets, played by a thread.
class OpenedSideSocket : public ::testing::Test {
 protected:
  OpenedSideSocket() {
    way.self = makeIdentity();
    way.record.identity = makeIdentity();
    way.record.socketName = listener.names().front();
    way.secret = Bytes(32);
    way.greeting.target = way.greeting.self = Bytes(kInstanceBytes);
    way.hello = pattern(10, 1);
  }
  // Returns the next connection.
  ControlSocket next() {
    std::optional<ControlSocket> socket;
    EXPECT_TRUE(
        eventually([&] { return (socket = listener.accept()).has_value(); }));
    return std::move(*socket);
  }
  // Returns how opening ended.
  Status open() const {
    const auto deadline = deadlineAfter(milliseconds(20000));
    return statusOf([&] { openSideSocket(way, deadline); });
  }

  Listener listener = Listener::onThisHost();
  SideSocketWay way;
};

// An acceptor short of room drops the connection, at any point before the
// proof.
TEST_F(OpenedSideSocket, IsTriedAgainWhenThePeerHangsUpOrHasNoRoom) {
  const auto later = encode(Challenge{Verdict::kLater, "no room", {}, {}});
  std::thread peer([&] {
    next(); // hangs up before the greeting, or after
    next().sendFrame(later);
    auto greeted = next();
    EXPECT_TRUE(eventually([&] { return greeted.receiveFrame(); }));
    greeted.sendFrame(later);
    auto accepting = next();
    EXPECT_TRUE(acceptHelloBy(accepting, way.secret));
  });
  EXPECT_TRUE(open().ok());
  peer.join();
}

TEST_F(OpenedSideSocket, ThatThePeerNeverHasRoomForIsAPassingShortage) {
  std::atomic<bool> over{false};
  std::thread peer([&] {
    while (!over) {
      listener.accept(); // and hang up
    }
  });
  EXPECT_EQ(open().code(), ErrorCode::kExhausted);
  over = true;
  peer.join();
}

TEST_F(OpenedSideSocket, IsNotTriedAgainAtAWrongProcess) {
  std::thread peer([&] {
    auto socket = next();
    EXPECT_TRUE(eventually([&] { return socket.receiveFrame(); }));
    socket.sendFrame(encode(Challenge{Verdict::kStranger, "no", {}, {}}));
  });
  const auto status = open();
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << status.message();
  peer.join();
}

} // namespace
} // namespace dlslime::testing
