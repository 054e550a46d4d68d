// Which process a connection over shared memory is with, and the connection's
// permissions.
#include "transports/shm/shm_transport.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fakes/log_capture.h"

namespace dlslime::shm {
namespace {

using ::dlslime::testing::LogCapture;

PeerIdentity identity() {
  PeerIdentity made;
  made.bootId = "boot";
  made.hostUid = 7;
  return made;
}

TEST(ShmTransport, CopiesGoByThePidOfTheKernelWhateverThePeerClaims) {
  ShmTransport left{Config{}}, right{Config{}};
  Transport::Context context;
  context.nonce = "n";
  context.peer.pid = static_cast<uint32_t>(getppid()); // the peer's claim
  context.peerPid = static_cast<uint32_t>(getpid());
  Offer answer;
  const auto accepted = right.accept(context, left.offer(context), answer);
  const auto made = left.finish(context, std::move(answer));
  EXPECT_EQ(accepted->info().peerPid, context.peerPid);
  EXPECT_EQ(made->info().peerPid, context.peerPid);
}

// The peer has no pid in the local namespace of pids.
TEST(ShmTransport, ProcessThatTheKernelDoesNotNameIsStreamedTo) {
  ShmTransport left{Config{}}, right{Config{}};
  Transport::Context context;
  context.nonce = "n";
  context.peer.pid = static_cast<uint32_t>(getpid());
  Offer answer;
  const auto accepted = right.accept(context, left.offer(context), answer);
  EXPECT_EQ(accepted->info().peerPid, 0U);
  EXPECT_EQ(accepted->info().copyName, "staged");
}

TEST(ShmTransport, OtherUsersAreNotReached) {
  const ShmTransport transport{Config{}};
  EXPECT_TRUE(transport.reaches(identity(), identity()).ok());
  auto other = identity();
  other.hostUid = 8;
  const auto status = transport.reaches(identity(), other);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_NE(status.message().find("another user (uid 8"), std::string::npos)
      << status.message();
}

// Both transports connect over shared memory, as two processes would.
void connect(ShmTransport& left, ShmTransport& right, uint32_t kernelsPid) {
  Transport::Context context;
  context.nonce = "n";
  context.peerPid = kernelsPid;
  Offer answer;
  right.accept(context, left.offer(context), answer);
  left.finish(context, std::move(answer));
}

TEST(ShmTransport, RefusedAccessIsWarnedOfOnce) {
  const LogCapture log;
  ShmTransport left{Config{}}, right{Config{}};
  for (int i = 0; i < 3; ++i) {
    connect(left, right, 0);
  }
  EXPECT_EQ(log.count("another pid namespace"), 2U) << log.all(); // at each end
}

TEST(ShmTransport, NoAccessIsMissedToAnEndedProcessOrOneNotWanted) {
  const LogCapture log;
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ShmTransport left{Config{}}, right{Config{}};
  connect(left, right, static_cast<uint32_t>(child));
  Config off;
  off.crossMemoryAttach = false;
  ShmTransport third{off}, fourth{off};
  connect(third, fourth, 0);
  EXPECT_EQ(log.all(), "");
}

} // namespace
} // namespace dlslime::shm
