// Memory held by a group, and giving memory back from suspend() to resume().
#include "torch_ext/c10d/backend.h"
#include "torch_ext/support/checked_call.h"

#if DLSLIME_TORCH_HAS_SUSPEND

namespace dlslime {

namespace {

// Gloo has no memory to give back: suspend() of Gloo's backend throws.
bool holdsMemory(const c10d::Backend& backend) {
  return backend.getBackendName() != "gloo";
}

} // namespace

void DlslimeBackend::suspend() {
  checkedCall(refuseInForkedChild);
  if (handle_->suspended.exchange(true)) {
    return;
  }
  try {
    checkedCall([&] { handle_->engine->trim(*handle_->group); });
    for (const auto& backend : collectives_.backends().made()) {
      if (holdsMemory(*backend)) {
        backend->suspend();
      }
    }
  } catch (...) {
    handle_->suspended.store(false);
    throw;
  }
}

void DlslimeBackend::resume() {
  checkedCall(refuseInForkedChild);
  if (!handle_->suspended.load()) {
    return;
  }
  for (const auto& backend : collectives_.backends().made()) {
    if (holdsMemory(*backend)) {
      backend->resume();
    }
  }
  handle_->suspended.store(false);
}

std::unordered_map<std::string, uint64_t> DlslimeBackend::getMemoryStats() {
  checkedCall(refuseInForkedChild);
  const auto use = handle_->engine->memoryUse(*handle_->group);
  std::unordered_map<std::string, uint64_t> stats{
      {"suspend", use.idle},
      {"persist", use.lasting},
      {"total", use.idle + use.lasting}};
  for (const auto& backend : collectives_.backends().made()) {
    if (holdsMemory(*backend)) {
      for (const auto& [name, bytes] : backend->getMemoryStats()) {
        stats[name] += bytes;
      }
    }
  }
  stats["suspended"] = handle_->suspended.load() ? 1 : 0;
  return stats;
}

} // namespace dlslime

#endif
