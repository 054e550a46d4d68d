#include "base/fork_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "fakes/cluster.h"

namespace dlslime::testing {
namespace {

// Returns the result of `run` in a forked child; the child ends without
// destructors.
int inChild(const std::function<int()>& run) {
  const pid_t pid = fork();
  if (pid == 0) {
    _exit(run());
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "the child was killed";
  return WEXITSTATUS(status);
}

// Returns whether all further threads of the process sleep: a starting thread
// may hold locks of the address sanitizer, which fork() does not release in the
// child.
bool othersSleep() {
  const auto self = std::to_string(gettid());
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string text;
    std::getline(file, text);
    const auto name = text.rfind(')'); // followed by a blank and the state
    if (task.path().filename() != self && name != std::string::npos &&
        text.at(name + 2) != 'S') {
      return false;
    }
  }
  return true;
}

bool isOpen(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

class ForkGuardTest : public ::testing::Test {
 protected:
  ForkGuardTest() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    first = UniqueFd(ends[0]);
    second = UniqueFd(ends[1]);
  }
  UniqueFd first, second;
};

TEST_F(ForkGuardTest, ChildClosesWhatIsRegisteredAndNothingElse) {
  registerForkFd(first.get());
  EXPECT_EQ(
      inChild([&] {
        return (isOpen(first.get()) ? 1 : 0) + (isOpen(second.get()) ? 2 : 0);
      }),
      2);
  EXPECT_TRUE(isOpen(first.get()));
  unregisterForkFd(first.get());
  EXPECT_EQ(inChild([&] { return isOpen(first.get()) ? 1 : 0; }), 1);
}

TEST_F(ForkGuardTest, FormerOwnerClosesNothingInTheChild) {
  const int number = first.get();
  auto owner = std::make_unique<UnforkedFd>(std::move(first));
  const int kept = inChild([&] {
    if (dup2(second.get(), number) < 0) {
      return 2;
    }
    owner.reset();
    auto own = std::make_unique<UnforkedFd>(UniqueFd(dup(second.get())));
    const int its = own->get();
    own.reset();
    return isOpen(number) && !isOpen(its) ? 1 : 0;
  });
  EXPECT_EQ(kept, 1);
  EXPECT_TRUE(isOpen(number));
  owner.reset();
  EXPECT_FALSE(isOpen(number));
}

TEST_F(ForkGuardTest, AGrandchildKeepsWhatItsParentHasOpened) {
  registerForkFd(first.get());
  const int kept = inChild([&] {
    if (dup2(second.get(), first.get()) < 0) { // free in the child
      return 2;
    }
    return inChild([&] { return isOpen(first.get()) ? 1 : 0; });
  });
  EXPECT_EQ(kept, 1);
  unregisterForkFd(first.get());
}

TEST_F(ForkGuardTest, OnlyTheChildIsForked) {
  registerForkFd(first.get());
  EXPECT_EQ(inChild([] { return inForkedChild() ? 1 : 0; }), 1);
  EXPECT_FALSE(inForkedChild());
  unregisterForkFd(first.get());
}

TEST_F(ForkGuardTest, ForkingWhileOthersRegisterNeverHangsTheChild) {
  std::atomic<bool> stop{false}, running{false};
  std::thread busy([&] {
    while (!stop) {
      registerForkFd(first.get());
      unregisterForkFd(first.get());
      running = true;
    }
  });
  // A starting thread may hold locks of the address sanitizer, which fork()
  // does not release in the child.
  while (!running) {
    std::this_thread::yield();
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(
        inChild([&] {
          registerForkFd(second.get());
          unregisterForkFd(second.get());
          return 7;
        }),
        7);
  }
  stop = true;
  busy.join();
}

TEST_F(ForkGuardTest, EngineIsRefusedInAForkedChild) {
  const auto engine = Engine::acquire();
  EXPECT_EQ(Engine::acquire(), engine);
  EXPECT_TRUE(eventually(othersSleep));
  const int seen = inChild([&] {
    try {
      Engine::acquire();
    } catch (const Error& error) {
      const bool named =
          std::string(error.what()).find("fork") != std::string::npos;
      return named && error.status().code() == ErrorCode::kUnusable ? 1 : 2;
    }
    return 3;
  });
  EXPECT_EQ(seen, 1);
}

TEST_F(ForkGuardTest, JoiningAndLeavingInAForkedChildDoNoHarm) {
  Cluster world(2);
  ASSERT_TRUE(world.passes(0, 1));
  const int seen = inChild([&] {
    try {
      GroupOptions options;
      options.rendezvous = world.rendezvous("more");
      world[0].engine->join(options);
      return 3;
    } catch (const Error&) {
    }
    world[0].engine->leave(*world[0].group); // as a destructor does
    return 1;
  });
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(world.passes(0, 1, 3 << 20)) << "the parent's connections broke";
  EXPECT_TRUE(world.passes(1, 0));
}

TEST_F(ForkGuardTest, ParentsTrafficSurvivesManyForks) {
  Cluster world(2);
  std::atomic<bool> stop{false};
  std::thread traffic([&] {
    while (!stop) {
      ASSERT_TRUE(world.passes(0, 1, 300000));
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(inChild([] { return 4; }), 4);
  }
  stop = true;
  traffic.join();
}

TEST_F(ForkGuardTest, SharedEngineEndsWithItsLastHolder) {
  auto engine = Engine::acquire();
  const std::weak_ptr<Engine> gone = engine;
  engine.reset();
  EXPECT_TRUE(gone.expired());
  EXPECT_NE(Engine::acquire(), nullptr);
}

} // namespace
} // namespace dlslime::testing
