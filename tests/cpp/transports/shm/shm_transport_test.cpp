// Which process a connection over shared memory is with, and the connection's
// permissions.
#include "transports/shm/shm_transport.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "transports/shm/cma.h"

namespace dlslime::shm {
namespace {

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

TEST(AccessProblem, IsWhatTheKernelSays) {
  EXPECT_EQ(accessProblem(static_cast<uint32_t>(getpid())), 0);
  EXPECT_EQ(accessProblem(0), ESRCH);
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(accessProblem(static_cast<uint32_t>(child)), ESRCH);
}

} // namespace
} // namespace dlslime::shm
