#include "faults/case_runner.h"

#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "faults/watchdog.h"

namespace dlslime::testing {

namespace {

constexpr int kHangSeconds = 120; // a busy machine delays cases for long
constexpr int kLookMicroseconds = 3000;
// Limit on cases run again.
constexpr size_t kMostAgain = 10;
constexpr size_t kMostOutput = 8000; // from the beginning, and from the end

int entriesOf(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<int>(std::distance(begin(all), end(all)));
}

std::string openDescriptors() {
  std::string text;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    text += " " + entry.path().filename().string() + " " +
        std::filesystem::read_symlink(entry.path(), gone).string();
  }
  return text;
}

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  const size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

[[noreturn]] void tellAndAbort() {
  const RoleScope test(ThreadRole::kTest);
  std::fprintf(stderr, "=== std::terminate\n");
  try {
    if (std::current_exception()) {
      std::rethrow_exception(std::current_exception());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "    of an exception: %s\n", error.what());
  }
  printStack();
  std::abort();
}

bool allocates(const Fault* fault) {
  return fault != nullptr &&
      (fault->call == Call::kCallerAllocation ||
       fault->call == Call::kEngineAllocation);
}

// Joined and detached threads may stay for another moment.
void countWhatIsLeft(
    int descriptors,
    int threads,
    Allowance allowance,
    CaseReport& report) {
  eventually(
      [&] {
        return entriesOf("/proc/self/task") - threads <= allowance.threads;
      },
      allowance.threads < 0 ? 1 : 3);
  report.threads = entriesOf("/proc/self/task") - threads;
  report.descriptors = entriesOf("/proc/self/fd") - descriptors;
}

void runCycle(
    const FaultWay& way,
    const Fault* fault,
    Allowance allowance,
    CaseReport& report) {
  const auto began = Clock::now();
  const int descriptors = entriesOf("/proc/self/fd");
  const int threads = entriesOf("/proc/self/task");
  std::string complaints;
  // A new thread per cycle: the engine's data of the thread ends with the
  // thread.
  std::thread caller([&] {
    const RoleScope test(ThreadRole::kTest);
    Cycle cycle(way, allocates(fault));
    armFaults(fault, &report.calls);
    cycle.run();
    disarmFaults();
    put(report.route, cycle.route());
    put(report.story, cycle.story());
    complaints = cycle.complaints();
  });
  caller.join();
  countWhatIsLeft(descriptors, threads, allowance, report);
  if (allowance.descriptors >= 0 &&
      report.descriptors > allowance.descriptors) {
    complaints += "open descriptors:" + openDescriptors() + "\n";
  }
  put(report.complaints, complaints);
  report.seconds = std::chrono::duration<double>(Clock::now() - began).count();
}

[[noreturn]] void beChild(
    const FaultWay& way,
    const Fault* fault,
    Allowance allowance,
    CaseReport& report,
    int output) {
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  close(output);
  std::set_terminate(tellAndAbort);
  {
    const Watchdog watchdog(kHangSeconds);
    runCycle(way, fault, allowance, report);
    report.leaks = __lsan_do_recoverable_leak_check() != 0;
  }
  report.finished = true;
  _exit(0);
}

// A case in a child process.
class Running {
 public:
  Running(const FaultWay& way, const Fault* fault, Allowance allowance)
      : allowance_(allowance), output_(memfd_create("output", MFD_CLOEXEC)) {
    void* const shared = mmap(
        nullptr,
        sizeof(CaseReport),
        PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS,
        -1,
        0);
    if (shared == MAP_FAILED || output_ < 0) {
      throw std::runtime_error("no memory for a case");
    }
    report_ = new (shared) CaseReport{};
    result_.fault = fault != nullptr ? *fault : Fault{};
    pid_ = fork();
    if (pid_ == 0) {
      beChild(way, fault, allowance, *report_, output_);
    }
  }
  ~Running() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(output_);
    munmap(report_, sizeof(CaseReport));
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  bool over() {
    if (waitpid(pid_, &result_.status, WNOHANG) != pid_) {
      return false;
    }
    pid_ = -1;
    return true;
  }
  CaseResult& result() {
    result_.report = *report_;
    result_.output = read(0, kMostOutput);
    const auto size = static_cast<size_t>(lseek(output_, 0, SEEK_END));
    if (size > 2 * kMostOutput) {
      result_.output += "\n...\n";
    }
    if (size > kMostOutput) {
      result_.output +=
          read(std::max(size - kMostOutput, kMostOutput), kMostOutput);
    }
    result_.hung = result_.output.find("=== HANGS") != std::string::npos;
    result_.well = result_.status == 0 && report_->finished &&
        (!report_->leaks || driverLeaks()) && report_->complaints[0] == '\0' &&
        report_->descriptors <= allowance_.descriptors &&
        (report_->threads <= allowance_.threads || driverFails());
    return result_;
  }

 private:
  // True for faults of the driver: a stream of the fake has a thread, and a
  // module has memory, both left when destroying is made to fail.
  bool driverFails() const {
    return result_.fault.call == Call::kCuda;
  }
  bool driverLeaks() const {
    const std::string& text = result_.output;
    bool all = driverFails();
    for (auto at = text.find(" leak of "); all && at != text.npos;) {
      const auto next = text.find(" leak of ", at + 1);
      all = text.substr(at, next - at).find("libcuda.so") != text.npos;
      at = next;
    }
    return all;
  }
  std::string read(size_t begin, size_t most) const {
    std::string text(most, '\0');
    const auto got =
        pread(output_, text.data(), most, static_cast<off_t>(begin));
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

  const Allowance allowance_;
  const int output_;
  CaseReport* report_;
  CaseResult result_;
  pid_t pid_ = -1;
};

// Returns true for a case without any failed call: a busy machine has upset the
// case.
bool upset(const CaseResult& result) {
  return !result.well && result.report.calls.failed == 0;
}

std::string symbolOf(void* address) {
  char text[500] = "";
  // One byte back, to get the call instead of the next instruction.
  __sanitizer_symbolize_pc(
      static_cast<char*>(address) - 1, "%f %S", text, sizeof(text));
  return text;
}

} // namespace

std::string siteOf(const CallRecord& record) {
  std::string text;
  int kept = 0;
  for (int i = 0; i < record.frames && kept < 14; ++i) {
    const auto symbol = symbolOf(record.stack[i]);
    if (symbol.find("/csrc/") != std::string::npos) {
      text += "  " + symbol + "\n";
      ++kept;
    }
  }
  return text;
}

bool CaseResult::slow() const {
  return std::strstr(report.story, Cycle::kTimedOut) != nullptr;
}

std::string CaseResult::title(const FaultWay& way) const {
  const auto& kind = callKinds().at(static_cast<size_t>(fault.call));
  std::string text = std::string(way.name) + ", " + kind.name +
      ", n = " + std::to_string(fault.n) +
      (fault.times > 1 ? " and all after it" : "") + ", error " +
      std::to_string(fault.error) + ": ";
  if (well) {
    return text + "well";
  }
  if (hung) {
    return text + "hangs";
  }
  if (WIFSIGNALED(status)) {
    return text + "ends by signal " + std::to_string(WTERMSIG(status));
  }
  if (status != 0 || !report.finished) {
    return text + "ends with status " + std::to_string(WEXITSTATUS(status));
  }
  if (report.leaks) {
    return text + "leaks memory";
  }
  return text +
      (report.complaints[0] != '\0' ? "goes wrong" : "leaves something");
}

std::string CaseResult::describe(const FaultWay& way) const {
  return title(way) + "\n" + report.complaints +
      "left: " + std::to_string(report.descriptors) + " descriptors, " +
      std::to_string(report.threads) + " threads\n" + siteOf(report.calls) +
      report.story + output;
}

CaseResult runClean(const FaultWay& way) {
  Running running(way, nullptr, {-1, -1});
  while (!running.over()) {
    usleep(kLookMicroseconds);
  }
  return running.result();
}

void runCases(
    const FaultWay& way,
    const std::vector<Fault>& faults,
    Allowance allowance,
    int atATime,
    const std::function<void(const CaseResult&)>& tell) {
  std::vector<std::unique_ptr<Running>> running;
  auto queue = faults;
  size_t next = 0;
  while (next < queue.size() || !running.empty()) {
    while (next < queue.size() &&
           running.size() < static_cast<size_t>(atATime)) {
      running.push_back(
          std::make_unique<Running>(way, &queue[next++], allowance));
    }
    std::erase_if(running, [&](const auto& one) {
      if (!one->over()) {
        return false;
      }
      const auto& result = one->result();
      if (upset(result) && queue.size() < faults.size() + kMostAgain) {
        queue.push_back(result.fault);
      } else {
        tell(result);
      }
      return true;
    });
    usleep(kLookMicroseconds);
  }
}

} // namespace dlslime::testing
