// Descriptions of memory shared between processes, none of which exist.
#include "base/memory/shared_memory.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dlslime;
  using namespace dlslime::fuzz;
  constexpr uint32_t kBeyondAllPids = 0x7fffffff;
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const uint32_t pid : {0U, kBeyondAllPids}) {
    require(!takes([&] { mapShared(pid, bytes); }), "no process has this pid");
  }
  return 0;
}
