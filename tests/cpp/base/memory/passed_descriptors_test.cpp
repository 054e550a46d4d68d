#include "base/memory/passed_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "fakes/world.h"

namespace dlslime::testing {
namespace {

size_t openDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(
      std::distance(std::filesystem::begin(all), std::filesystem::end(all)));
}

// Returns the identity of the open file: the same for all copies.
uint64_t fileOf(int fd) {
  struct stat info {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_ino;
}

UniqueFd openPipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[1]);
  return UniqueFd(ends[0]);
}

class PassedDescriptorsTest : public ::testing::Test {
 protected:
  PassedDescriptorsTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    here = UniqueFd(ends[0]);
    there = UniqueFd(ends[1]);
  }
  void sendBytes(const Bytes& bytes) const {
    ASSERT_EQ(
        ::send(there.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
        static_cast<ssize_t>(bytes.size()));
  }
  // Sends bytes with descriptors, as passDescriptor() does for a single one.
  void sendWith(const Bytes& bytes, const std::vector<int>& fds) const {
    Bytes copy = bytes;
    iovec part{copy.data(), copy.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 8)> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    auto* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    ASSERT_EQ(
        sendmsg(there.get(), &message, MSG_NOSIGNAL),
        static_cast<ssize_t>(bytes.size()));
  }
  ssize_t readOnce() {
    return passed.read(here.get(), [this](uint64_t number, UniqueFd fd) {
      taken.emplace_back(number, std::move(fd));
    });
  }
  void readAll() {
    while (readOnce() > 0) {
    }
  }
  // A mark and a number, as passDescriptor() sends them.
  static Bytes marked(uint64_t number) {
    Bytes bytes(1 + sizeof(number), std::byte{1});
    std::memcpy(bytes.data() + 1, &number, sizeof(number));
    return bytes;
  }

  UniqueFd here, there;
  PassedDescriptors passed;
  std::vector<std::pair<uint64_t, UniqueFd>> taken;
};

constexpr uint64_t kNumber = 0x0100ff8001020304ULL; // with bytes of 0 and 1

TEST_F(PassedDescriptorsTest, DescriptorComesWithItsNumber) {
  const auto file = openPipe();
  ASSERT_TRUE(passDescriptor(there.get(), kNumber, file.get()));
  EXPECT_EQ(readOnce(), 9);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].first, kNumber);
  EXPECT_EQ(fileOf(taken[0].second.get()), fileOf(file.get()));
  EXPECT_NE(taken[0].second.get(), file.get());
  EXPECT_EQ(fcntl(taken[0].second.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(PassedDescriptorsTest, BytesOfZeroBeforeAndBehindMeanNothing) {
  const auto file = openPipe();
  sendBytes(Bytes(3));
  ASSERT_TRUE(passDescriptor(there.get(), kNumber, file.get()));
  sendBytes(Bytes(5));
  readAll();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].first, kNumber);
}

TEST_F(PassedDescriptorsTest, EachOfSeveralComesWithItsOwnNumber) {
  std::vector<UniqueFd> files;
  for (uint64_t i = 0; i < 5; ++i) {
    files.push_back(openPipe());
    ASSERT_TRUE(passDescriptor(there.get(), i << 40, files.back().get()));
    sendBytes(Bytes(i));
  }
  readAll();
  ASSERT_EQ(taken.size(), files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(taken[i].first, i << 40);
    EXPECT_EQ(fileOf(taken[i].second.get()), fileOf(files[i].get())) << i;
  }
}

// A read of 256 bytes may end within a number: the descriptor comes with the
// number's first bytes.
TEST_F(PassedDescriptorsTest, NumberAcrossTwoReadsKeepsItsDescriptor) {
  const auto file = openPipe();
  for (size_t before = 246; before < 258; ++before) {
    sendBytes(Bytes(before));
    ASSERT_TRUE(passDescriptor(there.get(), before, file.get()));
    readAll();
    ASSERT_EQ(taken.size(), 1U) << before;
    EXPECT_EQ(taken[0].first, before);
    EXPECT_EQ(fileOf(taken[0].second.get()), fileOf(file.get()));
    taken.clear();
  }
}

TEST_F(PassedDescriptorsTest, NumberByteByByteIsRead) {
  const auto file = openPipe();
  const auto bytes = marked(kNumber);
  sendWith({bytes[0]}, {file.get()});
  readAll();
  for (size_t i = 1; i < bytes.size(); ++i) {
    EXPECT_TRUE(taken.empty());
    sendBytes({bytes[i]});
    readAll();
  }
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].first, kNumber);
}

TEST_F(PassedDescriptorsTest, NumberWithoutADescriptorGivesNone) {
  sendBytes(marked(kNumber));
  readAll();
  EXPECT_TRUE(taken.empty());
  const auto file = openPipe();
  ASSERT_TRUE(passDescriptor(there.get(), 7, file.get()));
  readAll();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].first, 7U);
}

TEST_F(PassedDescriptorsTest, DescriptorsThatNoNumberNamesAreClosed) {
  const auto before = openDescriptors();
  {
    const auto file = openPipe();
    const int one = file.get();
    sendWith(Bytes(4), {one}); // bytes that only wake
    sendWith(Bytes(1, std::byte{9}), {one, one});
    sendWith(marked(5), {one, one, one}); // the first counts
    sendWith(Bytes(1), {one, one, one, one, one, one}); // more than are read
    readAll();
  }
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].first, 5U);
  taken.clear();
  EXPECT_EQ(openDescriptors(), before);
}

// A later number must not get a descriptor that came for nothing.
TEST_F(PassedDescriptorsTest, DescriptorOfBytesThatWakeIsNotOfALaterNumber) {
  const auto file = openPipe();
  sendWith(Bytes(1), {file.get()});
  sendBytes(marked(3));
  readAll();
  EXPECT_TRUE(taken.empty());
}

TEST_F(PassedDescriptorsTest, GarbageGivesNothingAndLeavesNothingOpen) {
  const auto before = openDescriptors();
  {
    const auto file = openPipe();
    std::mt19937_64 random(11);
    for (int round = 0; round < 500; ++round) {
      Bytes bytes(1 + random() % 40);
      for (auto& byte : bytes) {
        byte = static_cast<std::byte>(random() % 3);
      }
      random() % 2 == 0 ? sendBytes(bytes) : sendWith(bytes, {file.get()});
      readAll();
      for (const auto& [number, fd] : taken) {
        EXPECT_EQ(fileOf(fd.get()), fileOf(file.get()));
      }
      taken.clear();
    }
    there.reset();
    passed = {};
  }
  EXPECT_EQ(openDescriptors() + 1, before) << "the one end closed";
}

TEST_F(PassedDescriptorsTest, ReadSaysWhatTheSocketSays) {
  EXPECT_EQ(readOnce(), -1);
  EXPECT_TRUE(errno == EAGAIN || errno == EWOULDBLOCK) << errno;
  there.reset();
  EXPECT_EQ(readOnce(), 0);
}

TEST_F(PassedDescriptorsTest, DescriptorThatCannotBePassedIsSaidSo) {
  const auto file = openPipe();
  EXPECT_FALSE(passDescriptor(-1, 1, file.get())) << "no socket";
  EXPECT_FALSE(passDescriptor(there.get(), 1, -1)) << "no descriptor";
  while (passDescriptor(there.get(), 1, file.get())) { // until it is full
  }
  readAll();
  EXPECT_TRUE(passDescriptor(there.get(), 2, file.get()));
  here.reset();
  EXPECT_FALSE(passDescriptor(there.get(), 1, file.get())) << "no peer";
}

// Over TCP no descriptor goes; nothing may end the process or hang.
TEST_F(PassedDescriptorsTest, SocketWithoutDescriptorsRefuses) {
  const auto file = openPipe();
  const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  EXPECT_FALSE(passDescriptor(event.get(), 1, file.get()));
}

} // namespace
} // namespace dlslime::testing
