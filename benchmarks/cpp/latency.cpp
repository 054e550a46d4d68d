// A ping-pong by the engine alone, without Python, to measure the engine's cost
// above the route's. Each end is a process, with a rank and a shared folder:
//
//   cmake -S tests/cpp -B build/cpp-plain -DSANITIZE=none
//   cmake --build build/cpp-plain --target dlslime_latency
//   build/cpp-plain/dlslime_latency RANK FOLDER BYTES ROUND_TRIPS
//
// Rank 1 prints the median and the least one-way time in microseconds, as
// benchmarks/limit does. benchmarks/rdma.py runs the program, if built.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "engine/engine.h"
#include "fakes/owned_memory.h"
#include "fakes/peers/file_rendezvous.h"

namespace dlslime::testing {
namespace {

class End {
 public:
  End(int rank, const char* folder, size_t bytes)
      : peer_(1 - rank),
        engine_(std::make_shared<Engine>(Config::fromEnvironment())),
        out_(std::make_shared<OwnedMemory>(bytes)),
        in_(std::make_shared<OwnedMemory>(bytes)) {
    GroupOptions options;
    options.name = "latency";
    options.rank = rank;
    options.size = 2;
    options.rendezvous = std::make_shared<FileRendezvous>(folder);
    group_ = engine_->join(std::move(options));
  }
  ~End() {
    engine_->leave(*group_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void send() {
    const auto operation = std::make_shared<OwnedOperation>(
        Operation::Kind::kSend, peer_, 0, out_);
    engine_->send(*group_, operation);
    finish(*operation);
  }
  void receive() {
    const auto operation = std::make_shared<OwnedOperation>(
        Operation::Kind::kReceive, peer_, 0, in_);
    engine_->receive(*group_, operation);
    finish(*operation);
  }

 private:
  void finish(const Operation& operation) {
    // As in torch's backend: only waits that last read the clock.
    const bool done = engine_->wait(operation, milliseconds(60000));
    if (!done || !operation.status().ok()) {
      const auto text = operation.status().message();
      std::fprintf(stderr, "%s\n", done ? text.c_str() : "it takes too long");
      std::exit(1);
    }
  }

  const int peer_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<OwnedMemory> out_, in_;
};

int run(int rank, const char* folder, size_t bytes, int trips) {
  End end(rank, folder, bytes);
  const int warming = trips / 4;
  std::vector<double> times;
  for (int i = 0; i < warming + trips; ++i) {
    const auto start = Clock::now();
    if (rank == 1) {
      end.send();
      end.receive();
    } else {
      end.receive();
      end.send();
    }
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (i >= warming) {
      times.push_back(took.count() / 2);
    }
  }
  std::sort(times.begin(), times.end());
  if (rank == 1) {
    std::printf(
        "send %zu %.2f %.2f\n", bytes, times[times.size() / 2], times[0]);
  }
  return 0;
}

} // namespace
} // namespace dlslime::testing

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: dlslime_latency RANK FOLDER BYTES TRIPS\n");
    return 2;
  }
  return dlslime::testing::run(
      std::atoi(argv[1]),
      argv[2],
      std::strtoull(argv[3], nullptr, 10),
      std::atoi(argv[4]));
}
