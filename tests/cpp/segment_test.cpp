#include "core/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "core/status.h"
#include "shm/doorbell.h"

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

TEST(SegmentTest, SegmentCannotBeResizedByAnybody) {
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

TEST(DoorbellTest, AwakeProcessIsNotRung) {
  Doorbell bell;
  RemoteDoorbell peer(bell.duplicatePage(), bell.duplicateEvent());
  peer.ring();
  uint64_t count = 0;
  EXPECT_LT(read(bell.fd(), &count, sizeof(count)), 0);
}

TEST(DoorbellTest, SleepingProcessIsRungOnce) {
  Doorbell bell;
  RemoteDoorbell peer(bell.duplicatePage(), bell.duplicateEvent());
  bell.setAsleep(true);
  peer.ring();
  peer.ring();
  uint64_t count = 0;
  ASSERT_EQ(read(bell.fd(), &count, sizeof(count)), 8);
  EXPECT_EQ(count, 1U);
  bell.setAsleep(true);
  peer.ring();
  bell.drain();
  EXPECT_LT(read(bell.fd(), &count, sizeof(count)), 0);
}

std::atomic<int> brokenPipes{0};

// A peer may hand us any descriptor in place of its eventfd.
TEST(DoorbellTest, PipeWithoutAReaderInPlaceOfTheEventKillsNobody) {
  const auto before = signal(SIGPIPE, [](int) { ++brokenPipes; });
  Doorbell bell;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  UniqueFd dead(ends[1]);
  try {
    RemoteDoorbell peer(bell.duplicatePage(), std::move(dead));
    bell.setAsleep(true);
    peer.ring();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), ErrorCode::kPeerFailed);
  }
  signal(SIGPIPE, before);
  EXPECT_EQ(brokenPipes, 0) << "it would have ended the process";
}

} // namespace
} // namespace dlslime::shm
