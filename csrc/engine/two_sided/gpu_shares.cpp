#include "engine/two_sided/gpu_shares.h"

#include <utility>

namespace dlslime {

bool GpuShares::show(
    Accelerator& gpus,
    const MemoryView& view,
    RemoteBuffer& memory) {
  memory = {0, {}, RemoteBuffer::kUnreachable};
  if (!output_.connection()->onThisHost()) {
    return true;
  }
  gpus_ = &gpus;
  const auto shared = gpus.sharing().share(view);
  if (shared.empty()) {
    return true;
  }
  bool first = true;
  for (const auto id : shared) {
    if (shown_.contains(id)) {
      continue;
    }
    if (std::exchange(first, false) && !dropUnshared(gpus)) {
      return false; // freed allocations go first
    }
    const auto description = gpus.sharing().describeShared(id);
    if (description.empty()) {
      return true;
    }
    if (!output_.send(wire::encode(wire::Share{id}), description)) {
      return false;
    }
    shown_.insert(id);
  }
  memory.address = reinterpret_cast<uint64_t>(view.data);
  memory.keys = {
      static_cast<uint32_t>(shared[0]),
      static_cast<uint32_t>(shared[0] >> 32),
      0};
  memory.slot = RemoteBuffer::kOnGpu;
  return true;
}

// Unshares freed allocations: a GPU gets memory back when both ends have let go
// of it.
bool GpuShares::dropUnshared(Accelerator& gpus) {
  bool room = output_.connection() != nullptr && !output_.severed() &&
      !output_.failed();
  std::erase_if(shown_, [&](uint64_t id) REQUIRES(kEngineLock) {
    const bool gone = room && !gpus.sharing().isShared(id);
    room = room && (!gone || output_.send(wire::encode(wire::Unshare{id}), {}));
    return gone && room;
  });
  return room;
}

// An allocation that is shared no more is told of by dropUnshared().
Bytes GpuShares::describe(uint64_t id, bool handOver) const {
  if (!shown_.contains(id) || !gpus_->sharing().isShared(id)) {
    return {};
  }
  auto description = gpus_->sharing().describeShared(id);
  if (handOver && output_.connection() != nullptr) {
    if (const auto handed = gpus_->sharing().handOver(id); handed.fd) {
      output_.connection()->passDescriptor(handed.number, handed.fd.get());
    }
  }
  return description;
}

void GpuShares::addShown(const MemoryView& view, std::set<uint64_t>& ids)
    const {
  if (!shown_.empty() && view.onDevice()) {
    const auto shared = view.accelerator->sharing().share(view);
    ids.insert(shared.begin(), shared.end());
  }
}

} // namespace dlslime
