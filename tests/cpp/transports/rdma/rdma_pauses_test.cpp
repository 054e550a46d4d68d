// Connections that break immediately, again and again, must fill neither a core
// nor the log.
#include <gtest/gtest.h>

#include <thread>

#include "fakes/verbs/rdma_pair.h"

namespace dlslime::testing {
namespace {

constexpr milliseconds kWatched{1000};
constexpr size_t kMostConnections = 100;

class RdmaPauses : public RdmaPair {
 protected:
  RdmaPauses() : RdmaPair({nicOf(0), nicOf(1)}) {}
};

// The queues can't be armed, so each connection is lost when a thread goes to
// sleep.
TEST_F(RdmaPauses, ConnectionThatIsLostAgainAndAgainIsReplacedAfterPauses) {
  start({}, FallbackPolicy::kForbid);
  ASSERT_EQ(route(0), "rdma");
  fabric.refuse("req_notify_cq", EIO);
  const auto receive = (*world)[1].receive(0, 1, 100);
  // All threads may be asleep already, with armed queues.
  ASSERT_TRUE(eventually([&] {
    (*world)[1].engine->wait(*receive, deadlineAfter(milliseconds(5)));
    return log.count("is lost") > 0;
  }));
  std::this_thread::sleep_for(kWatched);
  EXPECT_LT(log.count("is lost"), kMostConnections);
  EXPECT_LT(log.count("again, over"), kMostConnections);
  fabric.refuse("req_notify_cq", 0);
  const auto send = (*world)[0].send(1, 1, pattern(100));
  ASSERT_TRUE((*world)[1].wait(receive));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  ASSERT_TRUE((*world)[0].wait(send));
}

} // namespace
} // namespace dlslime::testing
