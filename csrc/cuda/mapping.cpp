#include "cuda/mapping.h"

#include <utility>

#include "base/log.h"

namespace dlslime::cuda {

Mapping::~Mapping() {
  try {
    const Gpu::Scope scope(*gpu_);
    unmap();
  } catch (const Error& error) { // the context is gone, and so is the mapping
    logDebug(error.what());
  }
}

void Mapping::open(uint32_t pid, UniqueFd handed) {
  const Gpu::Scope scope(*gpu_);
  if (exported_.by == By::kIpc) {
    openIpc();
    return;
  }
  if (exported_.by == By::kFabric) {
    try {
      openFabric();
      return;
    } catch (const Error& error) { // the process may have no channel (IMEX)
      if (exported_.descriptor < 0 || mapped()) {
        throw;
      }
      logDebug(error.what());
    }
  }
  openDescriptor(pid, std::move(handed));
}

void Mapping::openIpc() {
  const auto& driver = gpu_->driver();
  DevicePointer opened = 0;
  driver.check(
      driver.ipcOpenHandle(&opened, exported_.handle, kIpcLazyPeerAccess),
      "mapping a peer's GPU memory (cuIpcOpenMemHandle)");
  here_ = opened;
  requireSize(allocationOf(driver, here_));
}

void Mapping::openFabric() {
  auto handle = exported_.handle;
  import(&handle, kFabricHandle);
}

void Mapping::openDescriptor(uint32_t pid, UniqueFd handed) {
  const auto fetched = handed
      ? std::move(handed)
      : fetchDescriptor(pid, exported_.descriptor, exported_.proof);
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
  driver.releaseHandle(handle); // the mapping keeps the memory
  requireSize(mappedAt(*gpu_, here_));
}

void Mapping::mapHandle(MemoryHandle handle) {
  const auto& driver = gpu_->driver();
  DevicePointer reserved = 0;
  driver.check(
      driver.reserveAddresses(&reserved, exported_.size, 0, 0, 0),
      "reserving addresses for a peer's GPU memory (cuMemAddressReserve)");
  here_ = reserved;
  driver.check(
      driver.map(here_, exported_.size, 0, handle, 0),
      "mapping a peer's GPU memory (cuMemMap)");
  backed_ = true;
  const AccessDescription ours{
      {kDeviceLocation, gpu_->ordinal()}, kReadAndWrite};
  driver.check(
      driver.setAccess(here_, exported_.size, &ours, 1),
      "getting at a peer's GPU memory (cuMemSetAccess)");
}

// Throws Error if the memory is smaller than the peer says: copies must not
// leave the mapping.
void Mapping::requireSize(const Allocation& actual) const {
  if (actual.base != here_ || actual.size < exported_.size) {
    throw Error(
        ErrorCode::kTransportFailed,
        "the peer's GPU memory has " + std::to_string(actual.size) +
            " bytes instead of the " + std::to_string(exported_.size) +
            " bytes in the peer's description");
  }
}

void Mapping::unmap() const {
  const auto& driver = gpu_->driver();
  if (here_ == 0) {
    return;
  }
  if (exported_.by == By::kIpc) {
    driver.ipcCloseHandle(here_);
    return;
  }
  if (backed_) {
    driver.unmap(here_, exported_.size);
  }
  driver.freeAddresses(here_, exported_.size);
}

DevicePointer Mapping::at(uint64_t address, size_t bytes) const {
  if (address < exported_.base || bytes > exported_.size ||
      address - exported_.base > exported_.size - bytes) {
    throw Error(
        ErrorCode::kTransportFailed,
        "the peer names " + std::to_string(bytes) +
            " bytes outside of its GPU allocation of " +
            std::to_string(exported_.size));
  }
  return here_ + (address - exported_.base);
}

void UnusedMappings::add(std::unique_ptr<const Mapping> mapping) {
  const MutexLock lock(mutex_);
  all_.push_back(std::move(mapping));
  if (tell_) {
    tell_();
  }
}

void UnusedMappings::onAdded(std::function<void()> tell) {
  const MutexLock lock(mutex_);
  tell_ = std::move(tell);
}

bool UnusedMappings::empty() {
  const MutexLock lock(mutex_);
  return all_.empty() && taken_ == 0;
}

void UnusedMappings::unmapAll() {
  const MutexLock unmapping(unmapping_);
  std::vector<std::unique_ptr<const Mapping>> taken;
  {
    const MutexLock lock(mutex_);
    taken.swap(all_);
    taken_ = taken.size();
  }
  taken.clear();
  const MutexLock lock(mutex_);
  taken_ = 0;
}

} // namespace dlslime::cuda
