// Copies kept from returning by a peer hold up the peer's pair alone.
#include "engine/progress/copier.h"

#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "base/leak_on_purpose.h"
#include "fakes/child_process.h"
#include "fakes/peers/file_rendezvous.h"
#include "fakes/peers/scripted_channel.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// Copies that end on the test's order, told apart by token.
class Gate {
 public:
  static int run(const CopyJob& job) {
    auto& gate = *reinterpret_cast<Gate*>(job.remote);
    std::unique_lock<std::mutex> lock(gate.mutex_);
    gate.begun_.insert(job.token);
    gate.changed_.notify_all();
    gate.changed_.wait(lock, [&] { return gate.open_.contains(job.token); });
    return 0;
  }
  ClaimedCopy copy(uint64_t token) {
    ClaimedCopy made;
    made.job.run = run;
    made.job.remote = reinterpret_cast<uint64_t>(this);
    made.job.token = token;
    return made;
  }
  void open(uint64_t token) {
    const std::lock_guard<std::mutex> guard(mutex_);
    open_.insert(token);
    changed_.notify_all();
  }
  bool awaitBegin(uint64_t token) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(
        lock, std::chrono::seconds(30), [&] { return begun_.contains(token); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> begun_, open_; // guarded by mutex_
};

class CopierTest : public ::testing::Test {
 protected:
  std::optional<ClaimedCopy> onMade(const ClaimedCopy& made) {
    const std::lock_guard<std::mutex> guard(mutex);
    finished.insert(made.job.token);
    return std::nullopt;
  }
  bool give(uint64_t token) {
    auto copy = gate.copy(token);
    return copier.give(copy);
  }
  bool isFinished(uint64_t token) {
    const std::lock_guard<std::mutex> guard(mutex);
    return finished.contains(token);
  }

  ~CopierTest() override {
    for (const uint64_t token : {1, 2}) {
      gate.open(token);
    }
  }

  // Leaked, since stuck copies may use the gate later.
  Gate& gate = *[] {
    auto made = std::make_shared<Gate>();
    leakOnPurpose(made);
    return made.get();
  }();
  std::mutex mutex;
  std::set<uint64_t> finished; // guarded by mutex
  Copier copier{
      [this](const ClaimedCopy& made, bool /*more*/) { return onMade(made); }};
};

TEST_F(CopierTest, CopyIsMadeAndTheEngineTold) {
  EXPECT_FALSE(copier.busy());
  EXPECT_EQ(copier.lookAgain(), never());
  ASSERT_TRUE(copier.free());
  gate.open(1);
  ASSERT_TRUE(give(1));
  EXPECT_TRUE(eventually([&] { return isFinished(1) && !copier.busy(); }));
  EXPECT_TRUE(copier.free());
}

TEST_F(CopierTest, CopyThatDoesNotComeBackLeavesRoomForOthers) {
  ASSERT_TRUE(give(1));
  ASSERT_TRUE(gate.awaitBegin(1));
  EXPECT_TRUE(copier.busy());
  EXPECT_LT(copier.lookAgain(), never());
  EXPECT_TRUE(eventually([&] { return copier.free(); }));
  EXPECT_EQ(copier.stuck(), 1U);
  gate.open(2);
  ASSERT_TRUE(give(2));
  EXPECT_TRUE(eventually([&] { return isFinished(2); }));
  EXPECT_FALSE(isFinished(1));
  gate.open(1);
  EXPECT_TRUE(eventually([&] { return isFinished(1); }));
}

TEST_F(CopierTest, EndDoesNotWaitForACopyThatDoesNotComeBack) {
  ASSERT_TRUE(give(1));
  ASSERT_TRUE(gate.awaitBegin(1));
  copier.stop(milliseconds(10));
  EXPECT_FALSE(copier.free());
  gate.open(1); // the engine is gone, and not told
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(isFinished(1));
}

TEST_F(CopierTest, EndWaitsForACopyThatComesBack) {
  ASSERT_TRUE(give(1));
  ASSERT_TRUE(gate.awaitBegin(1));
  std::thread opening([&] {
    std::this_thread::sleep_for(milliseconds(50));
    gate.open(1);
  });
  copier.stop(kAnHour);
  EXPECT_TRUE(isFinished(1));
  opening.join();
}

using CopyingChannel = ScriptedChannel;

TEST_F(CopyingChannel, PairWhoseCopyIsOverdueIsLentNoOtherThread) {
  EXPECT_FALSE(channel->copies().overdue());
  channel->copies().noteGiven();
  EXPECT_FALSE(channel->copies().overdue());
  EXPECT_TRUE(eventually([&] { return channel->copies().overdue(); }));
  channel->copies().noteBack();
  EXPECT_FALSE(channel->copies().overdue());
}

Node joined(const std::string& folder, int rank) {
  Node node;
  node.engine = std::make_shared<Engine>(Config{});
  GroupOptions options;
  options.name = "silent";
  options.rank = rank;
  options.size = 3;
  options.rendezvous = std::make_shared<FileRendezvous>(folder);
  node.group = node.engine->join(options);
  return node;
}

constexpr uint32_t kReady = 1, kSilent = 2, kEcho = 3;
constexpr size_t kLarge = size_t{8} << 20;

// Returns memory that a thread would have to provide (userfaultfd); no thread
// does.
std::byte* missingMemory() {
  auto* const memory = mmap(
      nullptr,
      kLarge,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0);
  const auto fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  uffdio_register all{};
  all.range = {reinterpret_cast<uint64_t>(memory), kLarge};
  all.mode = UFFDIO_REGISTER_MODE_MISSING;
  const bool good =
      ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &all) == 0;
  return good ? static_cast<std::byte*>(memory) : nullptr;
}

class ViewOperation final : public Operation {
 public:
  explicit ViewOperation(std::byte* memory)
      : Operation(Kind::kSend, 0, kSilent, {memory, kLarge}) {}
};

const ChildRole kSilentSender("silent sender", [](const auto& arguments) {
  auto node = joined(arguments.at(0), 1);
  auto* const memory = missingMemory();
  if (memory == nullptr) {
    return 7;
  }
  node.wait(node.send(0, kReady, pattern(8)));
  node.engine->send(*node.group, std::make_shared<ViewOperation>(memory));
  sleep(600);
  return 0;
});

const ChildRole kHonest("honest echo", [](const auto& arguments) {
  auto node = joined(arguments.at(0), 2);
  for (;;) {
    const auto receive = node.receive(0, kEcho, kLarge);
    if (!node.wait(receive, 600) || !receive->status().ok()) {
      return 3;
    }
    node.wait(node.send(0, kEcho, receive->buffer()), 600);
  }
});

TEST(SilentPeer, StallsItsOwnPairAloneAndNoEnd) {
  const TemporaryFolder folder;
  auto node = joined(folder.path().string(), 0);
  const ChildProcess silent("silent sender", {folder.path().string()});
  const ChildProcess honest("honest echo", {folder.path().string()});
  const auto ready = node.receive(1, kReady, 8);
  ASSERT_TRUE(node.wait(ready));
  ASSERT_TRUE(ready->status().ok()) << ready->status().message();
  const auto missing = node.receive(1, kSilent, kLarge);
  // By then the engine's own threads have tried to fetch the message.
  std::this_thread::sleep_for(milliseconds(300));
  for (int i = 0; i < 5; ++i) {
    const auto receive = node.receive(2, kEcho, kLarge);
    const auto send = node.send(2, kEcho, pattern(kLarge, i));
    // The test does not poll: the engine's threads must bring the end about.
    ASSERT_TRUE(eventually([&] { return receive->done() && send->done(); }));
    ASSERT_TRUE(receive->status().ok()) << receive->status().message();
    EXPECT_EQ(receive->buffer(), pattern(kLarge, i));
  }
  EXPECT_FALSE(missing->done());
  node.engine->abort(
      *node.group, Status(ErrorCode::kCancelled, "the test is over"));
  node.group.reset();
  node.engine.reset(); // ends before the silent peer dies
  EXPECT_TRUE(missing->done());
}

} // namespace
} // namespace dlslime::testing
