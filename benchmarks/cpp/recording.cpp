// What the flight record and the histograms cost an operation: the time of
// noting a post and an end, without the engine.
//
//   cmake -S tests/cpp -B build/cpp-plain -DSANITIZE=none
//   cmake --build build/cpp-plain --target dlslime_recording
//   build/cpp-plain/dlslime_recording
//
// Prints the median of 101 rounds, and the least, in nanoseconds for each
// operation. dlslime_latency tells what a message costs.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/record/flight_recorder.h"
#include "fakes/owned_memory.h"

namespace dlslime::testing {
namespace {

constexpr size_t kOperations = 64; // in a cache, like those of a ping-pong
constexpr int kPasses = 200;
constexpr int kRounds = 101;

double round(
    FlightRecorder& recorder,
    std::vector<std::shared_ptr<OwnedOperation>>& operations) {
  const Status ok;
  const auto begun = Clock::now();
  for (int pass = 0; pass < kPasses; ++pass) {
    for (const auto& operation : operations) {
      recorder.begin(*operation);
      recorder.end(*operation, ok);
    }
  }
  const std::chrono::duration<double, std::nano> taken = Clock::now() - begun;
  return taken.count() / (kPasses * static_cast<double>(kOperations));
}

void run() {
  FlightRecorder recorder;
  const auto memory = std::make_shared<OwnedMemory>(8);
  std::vector<std::shared_ptr<OwnedOperation>> operations;
  operations.reserve(kOperations);
  for (size_t i = 0; i < kOperations; ++i) {
    operations.push_back(
        std::make_shared<OwnedOperation>(Operation::Kind::kSend, 1, 0, memory));
  }
  std::vector<double> rounds;
  rounds.reserve(kRounds);
  for (int i = 0; i < kRounds; ++i) {
    rounds.push_back(round(recorder, operations));
  }
  std::sort(rounds.begin(), rounds.end());
  std::printf("%.1f %.1f\n", rounds[kRounds / 2], rounds.front());
}

} // namespace
} // namespace dlslime::testing

int main() {
  dlslime::testing::run();
}
