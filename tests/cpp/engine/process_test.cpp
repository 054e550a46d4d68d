// Engines in processes of their own, killed and stopped.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "fakes/child_process.h"
#include "fakes/guarded_operation.h"
#include "fakes/peers/file_rendezvous.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// On a quiet machine a peer's death is told within a second; sanitizers and
// busy machines need more.
constexpr milliseconds kSoon{15000};
constexpr size_t kLarge = size_t{48} << 20;

enum Tag : uint32_t { kReady = 1, kFlood, kSink, kEcho };

// `copy` is the way of bulk data: "cma", "staged", or "frames" (over TCP).
Node joinAs(
    const std::string& folder,
    int rank,
    int size,
    const std::string& copy) {
  Config config;
  config.crossMemoryAttach = copy == "cma";
  config.linger = milliseconds(100);
  Node node;
  node.engine = std::make_shared<Engine>(config);
  GroupOptions options;
  options.name = "processes";
  options.rank = rank;
  options.size = size;
  options.rendezvous = std::make_shared<FileRendezvous>(folder);
  if (copy == "frames") {
    options.route = RoutePolicy::kTcp;
  }
  node.group = node.engine->join(options);
  return node;
}

// Arguments: folder, rank, size, copy. Tells rank 0 when ready; the roles below
// then send or receive for ever.
struct Partner {
  explicit Partner(const std::vector<std::string>& arguments)
      : node(joinAs(
            arguments.at(0),
            std::stoi(arguments.at(1)),
            std::stoi(arguments.at(2)),
            arguments.at(3))) {
    node.wait(node.send(0, kReady, pattern(8)));
  }
  Node node;
};

const ChildRole kFlooder("flooder", [](const auto& arguments) {
  Partner partner(arguments);
  for (;;) {
    partner.node.wait(partner.node.send(0, kFlood, Bytes(kLarge)), 3600);
  }
  return 0;
});

const ChildRole kSinker("sink", [](const auto& arguments) {
  Partner partner(arguments);
  for (;;) {
    partner.node.wait(partner.node.receive(0, kSink, kLarge), 3600);
  }
  return 0;
});

const ChildRole kEchoer("echo", [](const auto& arguments) {
  Partner partner(arguments);
  for (;;) {
    const auto receive = partner.node.receive(0, kEcho, kLarge);
    partner.node.wait(receive, 3600);
    if (!receive->status().ok()) {
      return 3;
    }
    Bytes bytes = receive->buffer();
    bytes.resize(receive->bytes());
    partner.node.wait(partner.node.send(0, kEcho, std::move(bytes)), 3600);
  }
});

// Ends in the way of the last argument.
const ChildRole kEnder("ender", [](const auto& arguments) {
  Partner partner(arguments);
  partner.node.wait(partner.node.receive(0, kEcho, 8), 3600);
  if (arguments.at(4) == "leave") {
    partner.node.engine->leave(*partner.node.group);
  } else if (arguments.at(4) == "exit") {
    _exit(5);
  } else if (arguments.at(4) == "fork and exit") {
    // A worker that outlives its parent, with all of the parent's descriptors.
    if (fork() == 0) {
      for (const int standard : {0, 1, 2}) {
        close(standard); // lets the test's runner see the end of the output
      }
      sleep(60); // longer than kSoon
      _exit(0);
    }
    _exit(5);
  }
  return 0;
});

// Waits for release and callbacks, which follow each other on an engine's
// thread.
void waitForEnd(const GuardedOperation& operation) {
  EXPECT_TRUE(eventually(
      [&] { return operation.releases() > 0 && operation.ends() > 0; }));
}

class ProcessTest : public ::testing::TestWithParam<const char*> {
 protected:
  void begin(int size) {
    size_ = size;
    node = joinAs(folder.path().string(), 0, size, GetParam());
  }
  ~ProcessTest() override {
    if (node.group) {
      node.engine->abort(
          *node.group, Status(ErrorCode::kCancelled, "the test is over"));
    }
  }
  ChildProcess
  start(const std::string& role, int rank, const std::string& more = "") {
    ChildProcess child(
        role,
        {folder.path().string(),
         std::to_string(rank),
         std::to_string(size_),
         GetParam(),
         more});
    const auto ready = node.receive(rank, kReady, 8);
    EXPECT_TRUE(node.wait(ready));
    EXPECT_TRUE(ready->status().ok()) << ready->status().message();
    return child;
  }
  // Expects an end soon, with an error that names the rank.
  void expectFailed(const OperationPtr& operation, int rank) {
    ASSERT_TRUE(node.engine->wait(*operation, deadlineAfter(kSoon)))
        << operation->describe() << " does not learn of it";
    EXPECT_EQ(operation->status().code(), ErrorCode::kPeerFailed);
    EXPECT_NE(
        operation->status().message().find("rank " + std::to_string(rank)),
        std::string::npos)
        << operation->status().message();
  }
  void expectEcho(int rank, size_t size) {
    const auto receive = node.receive(rank, kEcho, size);
    const auto send = node.send(rank, kEcho, pattern(size));
    ASSERT_TRUE(node.wait(receive));
    ASSERT_TRUE(receive->status().ok()) << receive->status().message();
    EXPECT_EQ(receive->buffer(), send->buffer());
    ASSERT_TRUE(node.wait(send));
  }

  TemporaryFolder folder;
  Node node;
  int size_ = 0;
};

TEST_P(ProcessTest, MessagesPassBetweenProcesses) {
  begin(2);
  const auto echo = start("echo", 1);
  for (const size_t size : {0, 8, 70000, 3 << 20, 40 << 20}) {
    expectEcho(1, size);
  }
  EXPECT_EQ(node.engine->report(*node.group).at(0).copy, GetParam());
}

TEST_P(ProcessTest, KilledSenderFailsItsReceivesAndNoOthers) {
  begin(3);
  const auto echo = start("echo", 2);
  auto sender = start("flooder", 1);
  const auto large = node.receive(1, kFlood, kLarge);
  const auto next = node.receive(1, kSink, kLarge); // never sent
  std::this_thread::sleep_for(milliseconds(3));
  sender.signal(SIGKILL);
  if (!large->done()) {
    ASSERT_TRUE(node.engine->wait(*large, deadlineAfter(kSoon)));
  }
  expectFailed(next, 1);
  // A small send may still end well before the end of the socket is seen, soon
  // after.
  BufferPtr small;
  const auto deadline = deadlineAfter(kSoon);
  do {
    small = node.send(1, kSink, pattern(8));
    ASSERT_TRUE(node.wait(small));
  } while (small->status().ok() && Clock::now() < deadline);
  expectFailed(small, 1);
  expectEcho(2, 1 << 20);
}

TEST_P(ProcessTest, KilledReceiverFailsTheSends) {
  begin(3);
  const auto echo = start("echo", 2);
  auto receiver = start("sink", 1);
  std::vector<BufferPtr> sends;
  for (int i = 0; i < 3; ++i) {
    sends.push_back(node.send(1, kSink, Bytes(kLarge)));
  }
  sends.push_back(node.send(1, kEcho, Bytes(kLarge))); // never received
  std::this_thread::sleep_for(milliseconds(5));
  receiver.signal(SIGKILL);
  for (const auto& send : sends) {
    ASSERT_TRUE(node.engine->wait(*send, deadlineAfter(kSoon)));
  }
  expectFailed(sends.back(), 1);
  expectFailed(node.receive(1, kFlood, 8), 1);
  expectEcho(2, 1 << 20);
}

// Kills the peer at random moments during large messages in both directions,
// with a thread waiting for each.
TEST_P(ProcessTest, KillingAtAnyMomentLosesNoOperation) {
  std::mt19937 random(12);
  for (int round = 0; round < 10; ++round) {
    const TemporaryFolder own;
    size_ = 2;
    Node here = joinAs(own.path().string(), 0, 2, GetParam());
    ChildProcess child(
        round % 2 == 0 ? "flooder" : "sink",
        {own.path().string(), "1", "2", GetParam()});
    ASSERT_TRUE(here.wait(here.receive(1, kReady, 8)));
    std::vector<BufferPtr> operations;
    for (int i = 0; i < 2; ++i) {
      operations.push_back(here.receive(1, kFlood, kLarge));
      operations.push_back(here.send(1, kSink, Bytes(kLarge)));
    }
    std::vector<std::thread> waiters;
    for (const auto& operation : operations) {
      waiters.emplace_back([&here, operation] {
        EXPECT_TRUE(here.wait(operation)) << operation->describe();
      });
    }
    std::this_thread::sleep_for(microseconds(random() % 30000));
    child.signal(SIGKILL);
    for (auto& waiter : waiters) {
      waiter.join();
    }
    here.engine->leave(*here.group);
  }
}

TEST_P(ProcessTest, EveryWayToEndIsTold) {
  for (const char* way : {"leave", "exit", "fork and exit", "return"}) {
    const TemporaryFolder own;
    Node here = joinAs(own.path().string(), 0, 2, GetParam());
    ChildProcess child(
        "ender", {own.path().string(), "1", "2", GetParam(), way});
    ASSERT_TRUE(here.wait(here.receive(1, kReady, 8)));
    const auto receive = here.receive(1, kFlood, 8);
    const auto any = here.receive(Operation::kAnySource, kSink, 8);
    const auto send = here.send(1, kSink, Bytes(kLarge));
    ASSERT_TRUE(here.wait(here.send(1, kEcho, pattern(8))));
    for (const auto& operation : {receive, any, send}) {
      ASSERT_TRUE(here.engine->wait(*operation, deadlineAfter(kSoon)))
          << way << ": " << operation->describe();
      EXPECT_EQ(operation->status().code(), ErrorCode::kPeerFailed) << way;
    }
    here.engine->leave(*here.group);
  }
}

// The peer is stopped in the middle: the caller returns in time, the memory
// stays alive while the peer may touch the bytes, and the pair works
// afterwards.
TEST_P(ProcessTest, StoppedSenderTimesOutAndTheMemoryStaysSafe) {
  begin(2);
  auto sender = start("flooder", 1);
  for (const int delay : {2, 6, 12}) {
    const auto receive = GuardedOperation::receive(1, kFlood, kLarge);
    node.engine->receive(*node.group, receive);
    std::this_thread::sleep_for(milliseconds(delay));
    sender.signal(SIGSTOP);
    const auto start = Clock::now();
    const Status why(ErrorCode::kTimeout, "timed out");
    if (!node.engine->wait(*receive, deadlineAfter(milliseconds(200)))) {
      node.engine->cancel(*node.group, receive, why);
      if (!node.engine->wait(*receive, deadlineAfter(milliseconds(200)))) {
        node.engine->abandon(*node.group, receive, why);
      }
    }
    ASSERT_TRUE(receive->done());
    EXPECT_LT(Clock::now() - start, kSoon);
    sender.signal(SIGCONT);
    waitForEnd(*receive);
    EXPECT_EQ(receive->releases(), 1);
    EXPECT_EQ(receive->ends(), 1);
  }
  const auto next = node.receive(1, kFlood, kLarge);
  ASSERT_TRUE(node.wait(next));
  EXPECT_TRUE(next->status().ok()) << next->status().message();
}

TEST_P(ProcessTest, StoppedReceiverTimesOutAndTheMemoryStaysSafe) {
  begin(2);
  auto receiver = start("sink", 1);
  for (const int delay : {0, 3, 8}) {
    const auto send = GuardedOperation::send(1, kSink, Bytes(kLarge));
    node.engine->send(*node.group, send);
    std::this_thread::sleep_for(milliseconds(delay));
    receiver.signal(SIGSTOP);
    const Status why(ErrorCode::kTimeout, "timed out");
    if (!node.engine->wait(*send, deadlineAfter(milliseconds(200)))) {
      node.engine->cancel(*node.group, send, why);
      if (!node.engine->wait(*send, deadlineAfter(milliseconds(200)))) {
        node.engine->abandon(*node.group, send, why);
        EXPECT_EQ(send->releases(), 0) << "the peer may still read it";
      }
    }
    ASSERT_TRUE(send->done());
    receiver.signal(SIGCONT);
    waitForEnd(*send);
    EXPECT_EQ(send->releases(), 1);
    EXPECT_EQ(send->ends(), 1);
  }
  const auto next = node.send(1, kSink, Bytes(kLarge));
  ASSERT_TRUE(node.wait(next));
  EXPECT_TRUE(next->status().ok()) << next->status().message();
}

TEST_P(ProcessTest, KilledProcessLeavesNothingInSharedMemory) {
  const auto names = [] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      found.insert(entry.path().filename());
    }
    return found;
  };
  const auto before = names();
  // Tries again, since files of further programs come and go.
  const auto nothingNew = [&] {
    return eventually([&] { return std::ranges::includes(before, names()); });
  };
  begin(2);
  auto sender = start("flooder", 1);
  EXPECT_TRUE(nothingNew());
  sender.signal(SIGKILL);
  sender.join();
  EXPECT_TRUE(nothingNew());
}

INSTANTIATE_TEST_SUITE_P(
    Copies,
    ProcessTest,
    ::testing::Values("cma", "staged", "frames"),
    [](const auto& instance) { return std::string(instance.param); });

} // namespace
} // namespace dlslime::testing
