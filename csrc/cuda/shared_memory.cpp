#include "cuda/shared_memory.h"

#include <algorithm>

#include "core/log.h"

namespace dlslime::cuda {

namespace {

Status cannotShare(const Gpu& gpu, const Allocation& allocation) {
  return {
      ErrorCode::kUnavailable,
      "memory of " + gpu.describe() + " (" + std::to_string(allocation.size) +
          " bytes) can't be shared with other processes: it was not made by "
          "cudaMalloc (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a "
          "pool)"};
}

} // namespace

Exports::Entry Exports::make(const Gpu& gpu, const Allocation& allocation) {
  Entry entry{allocation, {}, {}};
  if (!allocation.legacyIpc) {
    entry.problem = cannotShare(gpu, allocation);
    return entry;
  }
  const Gpu::Scope scope(gpu);
  entry.problem = gpu.driver().status(
      gpu.driver().ipcGetHandle(&entry.exported.handle, allocation.base),
      "sharing a GPU's memory (cuIpcGetMemHandle)");
  entry.exported.id = nextId_++;
  entry.exported.base = allocation.base;
  entry.exported.size = allocation.size;
  entry.exported.gpu = gpu.uuid();
  return entry;
}

ExportedAllocation
Exports::of(const Gpu& gpu, DevicePointer pointer, size_t bytes) {
  const auto allocation = allocationOf(gpu.driver(), pointer);
  if (!allocation.holds(pointer, bytes)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        std::to_string(bytes) + " bytes of " + gpu.describe() +
            " reach beyond their allocation of " +
            std::to_string(allocation.size));
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  auto found = entries_.find(allocation.base);
  if (found == entries_.end() ||
      found->second.allocation.bufferId != allocation.bufferId) {
    dropFreed(gpu.driver());
    found = entries_.emplace(allocation.base, make(gpu, allocation)).first;
  }
  if (!found->second.problem.ok()) {
    throw Error(found->second.problem);
  }
  return found->second.exported;
}

void Exports::dropFreed(const Driver& driver) {
  std::erase_if(entries_, [&](const auto& entry) {
    const auto& known = entry.second.allocation;
    try {
      return allocationOf(driver, known.base).bufferId != known.bufferId;
    } catch (const Error&) {
      return true; // nothing is there any more
    }
  });
}

bool Exports::live(uint64_t id) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry.second.problem.ok() && entry.second.exported.id == id;
  });
}

Mapping::Mapping(std::shared_ptr<Gpu> gpu, const ExportedAllocation& exported)
    : gpu_(std::move(gpu)), base_(exported.base), size_(exported.size) {
  const Gpu::Scope scope(*gpu_);
  const auto& driver = gpu_->driver();
  driver.check(
      driver.ipcOpenHandle(&here_, exported.handle, kIpcLazyPeerAccess),
      "mapping a peer's GPU memory (cuIpcOpenMemHandle)");
  // What the peer says of its size must not lead us out of the mapping.
  const auto actual = allocationOf(driver, here_);
  if (actual.base != here_ || actual.size < size_) {
    driver.ipcCloseHandle(here_);
    throw Error(
        ErrorCode::kTransportFailed,
        "the peer's GPU memory has " + std::to_string(actual.size) +
            " bytes, and not the " + std::to_string(size_) +
            " that it has told");
  }
}

Mapping::~Mapping() {
  try {
    const Gpu::Scope scope(*gpu_);
    gpu_->driver().ipcCloseHandle(here_);
  } catch (const Error& error) { // the context is gone, and the mapping with it
    logDebug(error.what());
  }
}

DevicePointer Mapping::at(uint64_t address, size_t bytes) const {
  if (address < base_ || bytes > size_ || address - base_ > size_ - bytes) {
    throw Error(
        ErrorCode::kTransportFailed,
        "the peer names " + std::to_string(bytes) +
            " bytes outside of its GPU allocation of " + std::to_string(size_));
  }
  return here_ + (address - base_);
}

std::shared_ptr<const Mapping> Imports::of(
    const std::shared_ptr<Gpu>& gpu,
    const ExportedAllocation& exported) {
  std::vector<std::shared_ptr<const Mapping>> dropped; // after unlocking
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto known =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.id == exported.id && entry.device == gpu->ordinal();
      });
  if (known != entries_.end()) {
    std::rotate(known, known + 1, entries_.end());
    return entries_.back().mapping;
  }
  entries_.push_back(
      {exported.id,
       gpu->ordinal(),
       std::make_shared<const Mapping>(gpu, exported)});
  auto mapping = entries_.back().mapping;
  shrink(dropped);
  return mapping;
}

void Imports::shrink(std::vector<std::shared_ptr<const Mapping>>& dropped) {
  for (size_t i = 0; i < entries_.size() && entries_.size() > most_;) {
    if (entries_[i].mapping.use_count() > 1) {
      ++i;
      continue;
    }
    dropped.push_back(std::move(entries_[i].mapping));
    entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Imports::forget(uint64_t id) {
  std::vector<Entry> dropped, kept; // the first freed after unlocking
  const std::lock_guard<std::mutex> guard(mutex_);
  for (auto& entry : entries_) {
    (entry.id == id ? dropped : kept).push_back(std::move(entry));
  }
  entries_ = std::move(kept);
}

size_t Imports::size() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return entries_.size();
}

} // namespace dlslime::cuda
