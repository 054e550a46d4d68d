#pragma once

#include <memory>

#include "cuda/exports.h"

namespace dlslime::cuda {

// An allocation of another process of this host, mapped for one of our GPUs.
class Mapping {
 public:
  // `pid`: of the exporter; 0: unknown, which descriptors can't do without.
  // Throws Error{kUnavailable}: it can't be mapped, and why.
  Mapping(
      std::shared_ptr<Gpu> gpu,
      const ExportedAllocation& exported,
      uint32_t pid);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Where so many bytes of the exporter's address are here. Throws
  // Error{kTransportFailed}: they are not in this allocation.
  DevicePointer at(uint64_t address, size_t bytes) const;

 private:
  void openHandle(const ExportedAllocation& exported);
  void openDescriptor(const ExportedAllocation& exported, uint32_t pid);
  void mapInto(MemoryHandle handle);
  void requireSize(const Allocation& actual) const;
  void unmap();

  const std::shared_ptr<Gpu> gpu_;
  const uint64_t base_;
  const size_t size_;
  const bool byDescriptor_;
  DevicePointer here_ = 0;
  bool mapped_ = false;
};

} // namespace dlslime::cuda
