#include "fake_cuda/faults.h"

#include <climits>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

namespace fake_cuda {

namespace {

struct Fault {
  Result result;
  int after; // calls that go well before
  int times;
};

std::mutex mutex;

// "cuIpcOpenMemHandle=217,cuInit=100"
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

} // namespace fake_cuda
