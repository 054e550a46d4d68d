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

// Returns the reason for a pair with the given directories in two network
// namespaces; ok if the pair may share memory.
Status apart(const std::string& directory, const std::string& peers) {
  auto self = identity(), peer = identity();
  self.directory = directory;
  peer.directory = peers;
  peer.networkNamespace = 1;
  return ShmTransport{Config{}}.reaches(self, peer);
}

TEST(ShmTransport, ContainersAreReachedByACommonDirectory) {
  EXPECT_TRUE(apart("1:2", "1:2").ok());
}

TEST(ShmTransport, ContainersWithoutACommonDirectoryAreToldWhatToMount) {
  const auto has = [](const Status& status, const char* text) {
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
    EXPECT_NE(status.message().find("network namespaces"), std::string::npos);
    EXPECT_NE(status.message().find(text), std::string::npos)
        << status.message();
  };
  has(apart("", ""), "mount one directory into both containers");
  has(apart("", ""), "set DLSLIME_RENDEZVOUS_DIR to it");
  has(apart("1:2", "1:3"), "another directory at each end");
  has(apart("", "1:3"), "not set at this end");
  has(apart("1:2", ""), "not set at the peer's end");
}

TEST(ShmTransport, DirectoryDoesNotMakeUsersOne) {
  auto self = identity(), peer = identity();
  self.directory = peer.directory = "1:2";
  peer.networkNamespace = 1;
  peer.hostUid = 8;
  const auto status = ShmTransport{Config{}}.reaches(self, peer);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_NE(status.message().find("another user (uid 8"), std::string::npos)
      << status.message();
  peer.bootId = "other";
  EXPECT_FALSE(ShmTransport{Config{}}.reaches(self, peer).ok());
}

TEST(ShmTransport, UserNumberInAContainerDoesNotMatter) {
  auto peer = identity();
  peer.uid = 5;
  EXPECT_TRUE(ShmTransport{Config{}}.reaches(identity(), peer).ok());
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
