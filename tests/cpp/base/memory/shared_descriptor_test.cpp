#include "base/memory/shared_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "fakes/world.h"

namespace dlslime::testing {
namespace {

const auto kSelf = static_cast<uint32_t>(getpid());

// A page without memory: a read of the page waits for provide().
class LatePage {
 public:
  LatePage()
      : size_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        page_(mmap(
            nullptr,
            size_,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1,
            0)),
        fd_(static_cast<int>(
            syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))) {
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register all{};
    all.range = {address(), size_};
    all.mode = UFFDIO_REGISTER_MODE_MISSING;
    good_ = ioctl(fd_.get(), UFFDIO_API, &api) == 0 &&
        ioctl(fd_.get(), UFFDIO_REGISTER, &all) == 0;
  }
  ~LatePage() {
    munmap(page_, size_);
  }
  LatePage(const LatePage&) = delete;
  LatePage& operator=(const LatePage&) = delete;

  bool good() const {
    return good_;
  }
  uint64_t address() const {
    return reinterpret_cast<uint64_t>(page_);
  }
  // Returns whether a thread waits for the page.
  bool awaited() const {
    pollfd entry{fd_.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  void provide() {
    uffdio_zeropage zero{};
    zero.range = {address(), size_};
    ioctl(fd_.get(), UFFDIO_ZEROPAGE, &zero);
  }

 private:
  const size_t size_;
  void* const page_;
  const UniqueFd fd_;
  bool good_ = false;
};

auto threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(std::filesystem::begin(all), std::filesystem::end(all));
}

std::string problemAt(const LatePage& page, int number) {
  try {
    fetchDescriptor(kSelf, number, {page.address(), 1});
    return "";
  } catch (const Error& error) {
    return error.status().message();
  }
}

TEST(SharedDescriptorTest, IsFetchedWithTheWordBesideIt) {
  const SharedDescriptor shared(
      UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC))));
  auto proof = shared.proof();
  EXPECT_TRUE(fetchDescriptor(kSelf, shared.number(), proof));
  ++proof.word;
  EXPECT_THROW(
      fetchDescriptor(kSelf, shared.number(), proof), OutdatedDescriptor);
}

// A late peer costs a second of waiting for every fetch, so a fetch from a
// repeatedly late peer must fail at once.
TEST(SharedDescriptorTest, ProcessThatIsRepeatedlyLateIsAskedNoMore) {
  const UniqueFd some(dup(STDERR_FILENO));
  const std::string silence = "memory has not returned";
  std::thread([] {}).join(); // sanitizers start a thread at the first thread
  for (int i = 0; i < 8; ++i) {
    LatePage page;
    ASSERT_TRUE(page.good()) << "no userfaultfd: " << errnoText(errno);
    const auto before = threads();
    const auto problem = problemAt(page, some.get());
    EXPECT_NE(problem.find(silence), std::string::npos) << problem;
    EXPECT_TRUE(eventually([&] { return page.awaited(); }));
    page.provide();
    // The reading thread sees the page and ends.
    ASSERT_TRUE(eventually([&] { return threads() <= before; }));
  }
  LatePage page;
  const auto problem = problemAt(page, some.get());
  EXPECT_NE(problem.find(silence), std::string::npos) << problem;
  EXPECT_FALSE(page.awaited()) << "it is not read any more";
}

} // namespace
} // namespace dlslime::testing
