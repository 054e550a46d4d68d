// Visitors of a process's inspection socket: each gets the report, whole, and
// none holds up the process.
#include "engine/inspect/inspection_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>

#include "engine/core/engine_core.h"
#include "engine/inspect/job_report.h"
#include "fakes/cluster.h"

namespace dlslime::testing {
namespace {

class InspectionSocketTest : public ::testing::Test {
 protected:
  // Serves what is ready, as the wire-up thread does between two sleeps.
  void serve() {
    std::vector<pollfd> fds;
    socket.addTo(fds);
    ::poll(fds.data(), fds.size(), 0);
    socket.onPoll(fds);
  }
  ControlSocket visit() const {
    return ControlSocket::connectTo(socket.name());
  }
  // Reads all that is there; true: the process has hung up.
  static bool read(const ControlSocket& visitor, std::string& text) {
    char bytes[65536];
    for (;;) {
      const auto count =
          ::recv(visitor.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (count <= 0) {
        return count == 0;
      }
      text.append(bytes, static_cast<size_t>(count));
    }
  }

  std::string report = "{}";
  int asked = 0;
  InspectionSocket socket{[this] {
    ++asked;
    return report;
  }};
};

TEST_F(InspectionSocketTest, VisitorGetsTheReportAndTheEnd) {
  const auto visitor = visit();
  EXPECT_EQ(asked, 0);
  serve();
  std::string text;
  EXPECT_TRUE(read(visitor, text));
  EXPECT_EQ(text, report);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(socket.nextDeadline(), never());
}

TEST_F(InspectionSocketTest, LongReportGoesAsTheVisitorReads) {
  report.assign(8 << 20, 'x');
  const auto visitor = visit();
  std::string text;
  int rounds = 0;
  for (bool ended = false; !ended; ++rounds) {
    ASSERT_LT(rounds, 10000);
    serve();
    ended = read(visitor, text);
  }
  EXPECT_EQ(text, report);
  EXPECT_GT(rounds, 2) << "the kernel took all at once";
  EXPECT_EQ(asked, 1);
}

TEST_F(InspectionSocketTest, VisitorThatDoesNotReadIsDropped) {
  report.assign(8 << 20, 'x');
  const auto visitor = visit();
  serve();
  const auto deadline = socket.nextDeadline();
  EXPECT_LT(deadline, never());
  socket.expire(deadline - milliseconds(1));
  EXPECT_EQ(socket.nextDeadline(), deadline) << "dropped too early";
  socket.expire(deadline);
  EXPECT_EQ(socket.nextDeadline(), never());
  std::string text;
  EXPECT_TRUE(read(visitor, text));
  EXPECT_LT(text.size(), report.size());
}

TEST_F(InspectionSocketTest, VisitorThatHasGoneIsForgotten) {
  report.assign(8 << 20, 'x');
  {
    const auto visitor = visit();
    serve();
  }
  serve();
  EXPECT_EQ(socket.nextDeadline(), never());
}

TEST_F(InspectionSocketTest, MoreVisitorsThanPlacesWait) {
  report.assign(8 << 20, 'x');
  std::deque<ControlSocket> visitors;
  for (size_t i = 0; i < InspectionSocket::kMostVisitors + 3; ++i) {
    visitors.push_back(visit());
  }
  serve();
  serve();
  EXPECT_EQ(asked, static_cast<int>(InspectionSocket::kMostVisitors));
  socket.expire(never());
  serve();
  EXPECT_EQ(asked, static_cast<int>(InspectionSocket::kMostVisitors) + 3);
}

TEST(JobReport, TellsGroupsPeersAndCounters) {
  Cluster world(2);
  ASSERT_TRUE(world.passes(0, 1));
  const auto text = jobReport(world[0].engine->core().state);
  for (const auto* part :
       {"\"connections\":1",
        "\"rank\":0,\"size\":2",
        "\"rank\":1,\"route\":\"",
        "\"sent_messages\":1",
        "\"rejected\":["}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

} // namespace
} // namespace dlslime::testing
