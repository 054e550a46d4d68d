#include "faults/watchdog.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <sanitizer/common_interface_defs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "faults/fault_plan.h"

namespace dlslime::testing {

namespace {

// Longer than printing a stack takes.
constexpr std::chrono::milliseconds kForAStack{300};

void printHere(int /*signal*/) {
  const RoleScope test(ThreadRole::kTest);
  std::fprintf(stderr, "--- thread %ld\n", syscall(SYS_gettid));
  printStack();
}

[[noreturn]] void giveUp(int seconds) {
  std::fprintf(stderr, "=== HANGS: not over after %d s\n", seconds);
  const auto self = std::to_string(syscall(SYS_gettid));
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    const auto name = entry.path().filename().string();
    if (name != self) {
      syscall(SYS_tgkill, getpid(), std::atoi(name.c_str()), SIGUSR2);
      std::this_thread::sleep_for(kForAStack);
    }
  }
  std::abort();
}

} // namespace

void printStack() {
  __sanitizer_print_stack_trace();
}

Watchdog::Watchdog(int seconds) {
  std::signal(SIGUSR2, printHere);
  thread_ = std::thread([this, seconds] {
    const RoleScope test(ThreadRole::kTest);
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(
            lock, std::chrono::seconds(seconds), [this] { return over_; })) {
      giveUp(seconds);
    }
  });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

} // namespace dlslime::testing
