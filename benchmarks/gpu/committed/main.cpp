// Committed waits between two processes, in plain driver calls:
//
//     committed_waits PTX committed|words|host PROGRAM SECONDS
//
// Runs one program (patterns.cpp, measurements.cpp) in two processes, and
// prints a line of JSON that says whether it has ended in so many seconds, and
// what it has measured. Both processes are gone afterwards.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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
    // Not destroyed: the driver may not let go of what is broken.
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

// Says "ok", "failed", "died of signal N" or "did not end".
// Those that have ended are no more in `ranks` then.
std::string outcomeOf(std::vector<pid_t>& ranks, double seconds) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::string worst = "ok";
  while (!ranks.empty()) {
    int status = 0;
    while (waitpid(ranks.back(), &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        return "did not end";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ranks.pop_back();
    if (WIFSIGNALED(status)) {
      worst = "died of signal " + std::to_string(WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0 && worst == "ok") {
      worst = "failed";
    }
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
        std::max(shared.times[0][i], shared.times[1][i]); // one has measured
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
  const auto begin = std::chrono::steady_clock::now();
  std::vector<pid_t> ranks;
  for (int number = 0; number < 2; ++number) {
    ranks.push_back(
        startRank(*program, shared, number, wayOf(argv[2]), ptx.str()));
  }
  const auto outcome = outcomeOf(ranks, std::atof(argv[4]));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  for (const pid_t rank : ranks) {
    kill(rank, SIGKILL);
    waitpid(rank, nullptr, 0);
  }
  print(*program, shared, outcome, seconds);
  return outcome == "ok" ? 0 : 1;
}
