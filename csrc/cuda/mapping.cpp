#include "cuda/mapping.h"

#include <utility>

#include "core/log.h"

namespace dlslime::cuda {

Mapping::Mapping(
    std::shared_ptr<Gpu> gpu,
    const ExportedAllocation& exported,
    uint32_t pid)
    : gpu_(std::move(gpu)),
      base_(exported.base),
      size_(exported.size),
      by_(exported.by) {
  const Gpu::Scope scope(*gpu_);
  try {
    open(exported, pid);
  } catch (...) {
    unmap();
    throw;
  }
}

Mapping::~Mapping() {
  try {
    const Gpu::Scope scope(*gpu_);
    unmap();
  } catch (const Error& error) { // the context is gone, and the mapping with it
    logDebug(error.what());
  }
}

void Mapping::open(const ExportedAllocation& exported, uint32_t pid) {
  if (by_ == By::kIpc) {
    openIpc(exported.handle);
    return;
  }
  if (by_ == By::kFabric) {
    try {
      openFabric(exported.handle);
      return;
    } catch (const Error& error) { // this process may have no such channel
      if (exported.descriptor < 0) {
        throw;
      }
      logDebug(error.what());
      unmap();
    }
  }
  openDescriptor(exported, pid);
}

void Mapping::openIpc(const IpcMemoryHandle& handle) {
  const auto& driver = gpu_->driver();
  driver.check(
      driver.ipcOpenHandle(&here_, handle, kIpcLazyPeerAccess),
      "mapping a peer's GPU memory (cuIpcOpenMemHandle)");
  mapped_ = true;
  requireSize(allocationOf(driver, here_));
}

void Mapping::openFabric(IpcMemoryHandle handle) {
  import(&handle, kFabricHandle);
}

void Mapping::openDescriptor(const ExportedAllocation& exported, uint32_t pid) {
  const auto fetched =
      fetchDescriptor(pid, exported.descriptor, exported.proof);
  import(
      reinterpret_cast<void*>(static_cast<intptr_t>(fetched.get())),
      kDescriptorHandle);
}

void Mapping::import(void* shareable, int type) {
  const auto& driver = gpu_->driver();
  MemoryHandle handle = 0;
  driver.check(
      driver.importHandle(&handle, shareable, type),
      "importing a peer's GPU memory (cuMemImportFromShareableHandle)");
  try {
    mapHandle(handle);
  } catch (...) {
    driver.releaseHandle(handle);
    throw;
  }
  driver.releaseHandle(handle); // the mapping keeps it
  requireSize(mappedAt(*gpu_, here_));
}

void Mapping::mapHandle(MemoryHandle handle) {
  const auto& driver = gpu_->driver();
  driver.check(
      driver.reserveAddresses(&here_, size_, 0, 0, 0),
      "reserving addresses for a peer's GPU memory (cuMemAddressReserve)");
  driver.check(
      driver.map(here_, size_, 0, handle, 0),
      "mapping a peer's GPU memory (cuMemMap)");
  mapped_ = true;
  const AccessDescription ours{
      {kDeviceLocation, gpu_->ordinal()}, kReadAndWrite};
  driver.check(
      driver.setAccess(here_, size_, &ours, 1),
      "getting at a peer's GPU memory (cuMemSetAccess)");
}

// What the peer says of its size must not lead us out of the mapping.
void Mapping::requireSize(const Allocation& actual) const {
  if (actual.base != here_ || actual.size < size_) {
    throw Error(
        ErrorCode::kTransportFailed,
        "the peer's GPU memory has " + std::to_string(actual.size) +
            " bytes, and not the " + std::to_string(size_) +
            " that it has told");
  }
}

void Mapping::unmap() {
  const auto& driver = gpu_->driver();
  const auto here = std::exchange(here_, 0);
  const bool mapped = std::exchange(mapped_, false);
  if (by_ == By::kIpc) {
    if (mapped) {
      driver.ipcCloseHandle(here);
    }
    return;
  }
  if (mapped) {
    driver.unmap(here, size_);
  }
  if (here != 0) {
    driver.freeAddresses(here, size_);
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

void UnusedMappings::add(std::unique_ptr<const Mapping> mapping) {
  const std::lock_guard<std::mutex> guard(mutex_);
  all_.push_back(std::move(mapping));
  if (tell_) {
    tell_();
  }
}

void UnusedMappings::onAdded(std::function<void()> tell) {
  const std::lock_guard<std::mutex> guard(mutex_);
  tell_ = std::move(tell);
}

bool UnusedMappings::empty() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return all_.empty() && taken_ == 0;
}

void UnusedMappings::unmapAll() {
  const std::lock_guard<std::mutex> unmapping(unmapping_);
  std::vector<std::unique_ptr<const Mapping>> taken;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    taken.swap(all_);
    taken_ = taken.size();
  }
  taken.clear();
  const std::lock_guard<std::mutex> guard(mutex_);
  taken_ = 0;
}

} // namespace dlslime::cuda
