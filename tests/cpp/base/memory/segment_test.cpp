#include "base/memory/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "base/status.h"
#include "transports/shm/doorbell.h"

namespace dlslime::shm {
namespace {

ErrorCode refusalOf(UniqueFd fd, size_t size, std::string& text) {
  try {
    Segment::adopt(std::move(fd), size);
  } catch (const Error& error) {
    text = error.what();
    return error.status().code();
  }
  return ErrorCode::kOk;
}

UniqueFd memory(size_t size, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

TEST(SegmentTest, BothMappingsShareTheBytes) {
  const auto own = Segment::create(8192);
  const auto peer = Segment::adopt(own.duplicateFd(), 8192);
  EXPECT_NE(own.data(), peer.data());
  EXPECT_EQ(peer.data()[8191], std::byte{0});
  own.data()[8191] = std::byte{42};
  EXPECT_EQ(peer.data()[8191], std::byte{42});
}

TEST(SegmentTest, SegmentCannotBeResized) {
  const auto own = Segment::create(8192);
  const auto fd = own.duplicateFd();
  EXPECT_NE(ftruncate(fd.get(), 4096), 0);
  EXPECT_NE(ftruncate(fd.get(), 16384), 0);
}

TEST(SegmentTest, OtherSizeIsRefusedWithBothSizes) {
  std::string text;
  const auto own = Segment::create(8192);
  EXPECT_EQ(refusalOf(own.duplicateFd(), 4096, text), ErrorCode::kPeerFailed);
  EXPECT_NE(text.find("8192"), std::string::npos) << text;
  EXPECT_NE(text.find("4096"), std::string::npos) << text;
  EXPECT_EQ(refusalOf(own.duplicateFd(), 16384, text), ErrorCode::kPeerFailed);
}

TEST(SegmentTest, UnsealedMemoryIsRefused) {
  std::string text;
  EXPECT_EQ(refusalOf(memory(4096, 0), 4096, text), ErrorCode::kPeerFailed);
  EXPECT_EQ(
      refusalOf(memory(4096, F_SEAL_GROW), 4096, text), ErrorCode::kPeerFailed);
}

TEST(SegmentTest, DescriptorsOfOtherKindsAreRefused) {
  std::string text;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd write(ends[1]);
  EXPECT_NE(refusalOf(UniqueFd(ends[0]), 4096, text), ErrorCode::kOk);
  EXPECT_NE(
      refusalOf(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), 0, text),
      ErrorCode::kOk);
  EXPECT_NE(refusalOf(UniqueFd(), 4096, text), ErrorCode::kOk);
}

TEST(SegmentTest, MemoryThatMayNotBeWrittenIsRefused) {
  std::string text;
  UniqueFd fd = memory(4096, F_SEAL_SHRINK | F_SEAL_WRITE);
  EXPECT_NE(refusalOf(std::move(fd), 4096, text), ErrorCode::kOk);
}

TEST(SegmentTest, MovedFromSegmentLetsGo) {
  auto first = Segment::create(4096);
  const Segment second = std::move(first);
  second.data()[0] = std::byte{1};
  EXPECT_EQ(second.size(), 4096U);
}

TEST(SegmentTest, MemoryForReadersIsWrittenByItsOwnerAlone) {
  const auto own = Segment::createForReaders(4096);
  const auto peer = Segment::adoptForReading(own.duplicateFd(), 4096);
  own.data()[0] = std::byte{42};
  EXPECT_EQ(peer.data()[0], std::byte{42});
  std::string text;
  EXPECT_NE(refusalOf(own.duplicateFd(), 4096, text), ErrorCode::kOk);
  const auto fd = own.duplicateFd();
  EXPECT_NE(pwrite(fd.get(), "x", 1, 0), 1);
  const auto path = "/proc/self/fd/" + std::to_string(fd.get());
  const UniqueFd again(open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_NE(pwrite(again.get(), "x", 1, 0), 1);
}

// Touching a huge page raises SIGBUS when no huge page is free.
TEST(SegmentTest, HugePagesAreRefused) {
  UniqueFd fd(
      memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd) {
    return; // the kernel has no huge pages
  }
  const size_t size = size_t{2} << 20;
  ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  std::string text;
  EXPECT_EQ(refusalOf(std::move(fd), size, text), ErrorCode::kPeerFailed);
}

class DoorbellTest : public ::testing::Test {
 protected:
  DoorbellTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    near = UniqueFd(ends[0]);
    far = UniqueFd(ends[1]);
    peer.useSocket(near.get());
  }
  ssize_t rings() const {
    char bytes[64];
    return recv(far.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  }

  Doorbell bell;
  RemoteDoorbell peer{bell.duplicatePage()};
  UniqueFd near, far;
};

TEST_F(DoorbellTest, AwakeProcessIsNotRung) {
  EXPECT_TRUE(peer.awake());
  peer.ring();
  EXPECT_LT(rings(), 0);
}

TEST_F(DoorbellTest, SleepingProcessIsRungOnce) {
  bell.setAsleep(true);
  EXPECT_FALSE(peer.awake());
  peer.ring();
  peer.ring();
  EXPECT_EQ(rings(), 1);
  bell.setAsleep(true); // still asleep since the first ring
  peer.ring();
  EXPECT_LT(rings(), 0);
  bell.setAsleep(false);
  bell.setAsleep(false);
  EXPECT_TRUE(peer.awake());
  peer.ring();
  EXPECT_LT(rings(), 0);
  bell.setAsleep(true);
  peer.ring();
  EXPECT_EQ(rings(), 1);
}

TEST_F(DoorbellTest, EveryPeerRingsByItself) {
  RemoteDoorbell silent(bell.duplicatePage()); // a peer whose socket is closed
  silent.useSocket(-1);
  bell.setAsleep(true);
  silent.ring();
  peer.ring();
  EXPECT_EQ(rings(), 1);
}

// The peer does not read, and has made the socket blocking.
TEST_F(DoorbellTest, FullSocketMakesNoThreadWait) {
  const int flags = fcntl(near.get(), F_GETFL);
  ASSERT_EQ(fcntl(near.get(), F_SETFL, flags & ~O_NONBLOCK), 0);
  const char bytes[4096] = {};
  while (send(near.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
  }
  bell.setAsleep(true);
  peer.ring();
  EXPECT_FALSE(peer.unrung()) << "the bytes that are there wake the peer";
  EXPECT_GT(rings(), 0);
}

std::atomic<int> brokenPipes{0};

TEST_F(DoorbellTest, PeerThatIsGoneKillsNoProcess) {
  const auto before = signal(SIGPIPE, [](int) { ++brokenPipes; });
  far.reset();
  bell.setAsleep(true);
  peer.ring();
  signal(SIGPIPE, before);
  EXPECT_EQ(brokenPipes, 0) << "it would have ended the process";
}

} // namespace
} // namespace dlslime::shm
