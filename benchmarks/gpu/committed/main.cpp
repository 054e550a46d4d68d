// Committed waits between two processes, in plain driver calls:
//
//     committed_waits PTX committed|words|host PROGRAM SECONDS
//
// Runs a program (patterns.cpp, measurements.cpp) in two processes, and prints
// a line of JSON with the outcome, the time and the measurements. Kills
// processes that have not ended in SECONDS.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "committed/program.h"

namespace {

using namespace committed;

const Program* find(const std::string& name) {
  for (const auto* all : {&patterns(), &measurements()}) {
    for (const auto& each : *all) {
      if (name == each.name) {
        return &each;
      }
    }
  }
  return nullptr;
}

Way wayOf(const std::string& name) {
  return name == "words" ? Way::kOverWords
      : name == "host"   ? Way::kHost
                         : Way::kCommitted;
}

[[noreturn]] void runRank(
    const Program& program,
    Shared& shared,
    int number,
    Way way,
    const std::string& ptx) {
  int status = 0;
  try {
    // Not destroyed: the driver may never return from destroying broken
    // objects.
    auto* const rank = new Rank(shared, number, way, kMemory);
    program.run(*rank, shared, ptx);
    rank->barrier();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", number, error.what());
    shared.failed = 1;
    status = 1;
  }
  _exit(status);
}

pid_t startRank(
    const Program& program,
    Shared& shared,
    int number,
    Way way,
    const std::string& ptx) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    runRank(program, shared, number, way, ptx);
  }
  return child;
}

using Clock = std::chrono::steady_clock;

// Time for two processes to start: contexts, memory, IPC.
constexpr double kStartSeconds = 20;

Clock::time_point after(double seconds) {
  return Clock::now() +
      std::chrono::duration_cast<Clock::duration>(
             std::chrono::duration<double>(seconds));
}

// Returns "" while the rank runs; else reaps the rank and returns its end.
std::string endOf(pid_t rank) {
  int status = 0;
  if (waitpid(rank, &status, WNOHANG) == 0) {
    return "";
  }
  if (WIFSIGNALED(status)) {
    return "died of signal " + std::to_string(WTERMSIG(status));
  }
  return WEXITSTATUS(status) == 0 ? "ok" : "failed";
}

// Returns "ok", "failed", "died of signal N", "did not end", or "did not
// start": the time begins when both ranks have come to the first barrier.
// Leaves only running ranks in `ranks`.
std::string
outcomeOf(std::vector<pid_t>& ranks, const Shared& shared, double seconds) {
  auto end = after(kStartSeconds);
  bool started = false;
  std::string worst = "ok";
  while (!ranks.empty()) {
    if (!started && shared.arrived >= 2) {
      started = true;
      end = after(seconds);
    }
    std::erase_if(ranks, [&](pid_t rank) {
      const auto ended = endOf(rank);
      worst = ended.empty() || ended == "ok" ? worst : ended;
      return !ended.empty();
    });
    if (Clock::now() > end && !ranks.empty()) {
      const char* const late = started ? "did not end" : "did not start";
      return worst == "ok" ? late : worst;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return worst;
}

void print(
    const Program& program,
    const Shared& shared,
    const std::string& outcome,
    double seconds) {
  std::printf(
      "{\"outcome\": \"%s\", \"seconds\": %.3f", outcome.c_str(), seconds);
  for (size_t i = 0; outcome == "ok" && i < program.values.size(); ++i) {
    const double value =
        std::max(shared.times[0][i], shared.times[1][i]); // 0: not measured
    std::printf(", \"%s\": %.3f", program.values[i], value);
  }
  std::printf("}\n");
}

} // namespace

int main(int argc, char** argv) {
  const Program* const program = argc == 5 ? find(argv[3]) : nullptr;
  if (program == nullptr) {
    std::fprintf(stderr, "committed_waits PTX WAY PROGRAM SECONDS\n");
    return 2;
  }
  std::stringstream ptx;
  ptx << std::ifstream(argv[1]).rdbuf();
  void* const memory = mmap(
      nullptr,
      sizeof(Shared),
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  auto& shared = *new (memory) Shared{};
  const auto begin = Clock::now();
  std::vector<pid_t> ranks;
  for (int number = 0; number < 2; ++number) {
    ranks.push_back(
        startRank(*program, shared, number, wayOf(argv[2]), ptx.str()));
  }
  const auto outcome = outcomeOf(ranks, shared, std::atof(argv[4]));
  const double seconds =
      std::chrono::duration<double>(Clock::now() - begin).count();
  print(*program, shared, outcome, seconds);
  std::fflush(stdout); // before killing, which the driver may delay
  for (const pid_t rank : ranks) {
    kill(rank, SIGKILL);
    waitpid(rank, nullptr, 0);
  }
  return outcome == "ok" ? 0 : 1;
}
