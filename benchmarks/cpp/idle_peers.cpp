// A ping-pong of 8 bytes between two engines, each connected to further peers
// that are idle: a look for news must not take longer with many peers.
//
//   cmake -S tests/cpp -B build/cpp-plain -DSANITIZE=none
//   cmake --build build/cpp-plain --target dlslime_idle_peers
//   build/cpp-plain/dlslime_idle_peers [ROUND_TRIPS]
//
// All engines are in one process. For each route (shared memory, and RDMA by
// the tests' NICs in memory) and each number of idle peers, prints the median
// one-way time in microseconds, and the ratio to the time without idle peers.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "fakes/cluster.h"
#include "fakes/owned_memory.h"
#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {
namespace {

constexpr int kIdle[] = {0, 6, 62, 254};
constexpr int kRounds = 5;

class Player {
 public:
  Player(Node node, int peer)
      : node_(std::move(node)),
        peer_(peer),
        out_(std::make_shared<OwnedMemory>(8)),
        in_(std::make_shared<OwnedMemory>(8)) {}

  void send() {
    const auto operation = std::make_shared<OwnedOperation>(
        Operation::Kind::kSend, peer_, 0, out_);
    node_.engine->send(*node_.group, operation);
    finish(*operation);
  }
  void receive() {
    const auto operation = std::make_shared<OwnedOperation>(
        Operation::Kind::kReceive, peer_, 0, in_);
    node_.engine->receive(*node_.group, operation);
    finish(*operation);
  }

 private:
  void finish(const Operation& operation) {
    const bool done = node_.engine->wait(operation, milliseconds(60000));
    if (!done || !operation.status().ok()) {
      const auto text = operation.status().message();
      std::fprintf(stderr, "%s\n", done ? text.c_str() : "it takes too long");
      std::exit(1);
    }
  }

  Node node_;
  const int peer_;
  std::shared_ptr<OwnedMemory> out_, in_;
};

void connect(Cluster& world, int from, int to) {
  const auto passed = world.passes(from, to, 8);
  if (!passed) {
    std::fprintf(stderr, "%s\n", passed.message());
    std::exit(1);
  }
}

// Connects the two players first: they are the acceptors of no other pair, and
// a process accepts a limited number of connections from a process.
void connectAll(Cluster& world) {
  connect(world, 0, 1);
  for (int rank = 2; rank < world.size(); ++rank) {
    for (int player = 0; player < 2; ++player) {
      connect(world, rank, player);
    }
  }
}

// Returns the median one-way time in microseconds.
double pingPong(Cluster& world, int trips) {
  Player first(world[0], 1), second(world[1], 0);
  std::vector<double> times;
  times.reserve(static_cast<size_t>(trips));
  const int warming = trips / 4 + 1000;
  std::thread answers([&] {
    for (int i = 0; i < warming + trips; ++i) {
      second.receive();
      second.send();
    }
  });
  for (int i = 0; i < warming + trips; ++i) {
    const auto start = Clock::now();
    first.send();
    first.receive();
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (i >= warming) {
      times.push_back(took.count() / 2);
    }
  }
  answers.join();
  const auto middle = times.begin() + trips / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double measure(const char* route, int idle, int trips) {
  const int size = 2 + idle;
  const bool rdma = std::string_view(route) == "rdma";
  std::vector<FakeDevice> devices;
  for (int rank = 0; rdma && rank < size; ++rank) {
    devices.push_back(nicOf(rank));
  }
  const FakeFabric fabric(devices);
  Cluster world(
      size,
      [&](int rank) { return rdma ? rdmaHost(rank) : Config(); },
      [&](GroupOptions& options) {
        options.fallback = FallbackPolicy::kForbid;
      });
  connectAll(world);
  std::vector<double> medians;
  for (int round = 0; round < kRounds; ++round) {
    medians.push_back(pingPong(world, trips));
  }
  return median(medians);
}

int run(int trips) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  std::printf(
      "%-6s %10s %14s %8s\n", "route", "idle peers", "one way us", "ratio");
  for (const auto* const route : {"shm", "rdma"}) {
    double alone = 0;
    for (const int idle : kIdle) {
      const double time = measure(route, idle, trips);
      alone = idle == 0 ? time : alone;
      std::printf("%-6s %10d %14.2f %8.2f\n", route, idle, time, time / alone);
      std::fflush(stdout);
    }
  }
  return 0;
}

} // namespace
} // namespace dlslime::testing

int main(int argc, char** argv) {
  return dlslime::testing::run(argc > 1 ? std::atoi(argv[1]) : 20000);
}
