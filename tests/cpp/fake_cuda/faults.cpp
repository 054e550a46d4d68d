#include "fake_cuda/faults.h"

#include <atomic>
#include <climits>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "fake_cuda/control.h"

namespace fake_cuda {

namespace {

struct Fault {
  Result result;
  int after; // calls that succeed before
  int times;
};

std::mutex mutex;
std::atomic<const FakeCudaWatcher*> watcher{nullptr};

// Reads "cuIpcOpenMemHandle=217,cuInit=100".
std::map<std::string, Fault> fromEnvironment() {
  std::map<std::string, Fault> faults;
  const char* const text = std::getenv("FAKE_CUDA_FAIL");
  std::stringstream entries(text != nullptr ? text : "");
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto at = entry.find('=');
    if (at != std::string::npos) {
      const auto result = static_cast<Result>(std::stoi(entry.substr(at + 1)));
      faults[entry.substr(0, at)] = {result, 0, INT_MAX};
    }
  }
  return faults;
}

std::map<std::string, Fault>& faults() {
  static auto* all = new std::map<std::string, Fault>(fromEnvironment());
  return *all;
}

} // namespace

Result faultOf(const char* function) {
  const std::lock_guard<std::mutex> guard(mutex);
  const auto found = faults().find(function);
  if (found == faults().end() || found->second.times == 0) {
    return Result::kSuccess;
  }
  auto& fault = found->second;
  if (fault.after > 0) {
    --fault.after;
    return Result::kSuccess;
  }
  --fault.times;
  return fault.result;
}

void addFault(const char* function, int result, int after, int times) {
  const std::lock_guard<std::mutex> guard(mutex);
  faults()[function] = {static_cast<Result>(result), after, times};
}

Visit::Visit() {
  if (const auto* const told = watcher.load()) {
    told->enter();
  }
}

Visit::~Visit() {
  if (const auto* const told = watcher.load()) {
    told->leave();
  }
}

Result Visit::begin(const char* function) const {
  const auto* const told = watcher.load();
  const int result = told != nullptr ? told->begin(function) : 0;
  return result != 0 ? static_cast<Result>(result) : faultOf(function);
}

} // namespace fake_cuda

extern "C" __attribute__((visibility("default"))) void fakeCudaWatch(
    const FakeCudaWatcher* told) {
  fake_cuda::watcher = told;
}
