#pragma once

#include "cuda/driver/gpu.h"
#include "interface/accelerator.h"

namespace dlslime::cuda {

// Returns what NICs need for access to memory of a GPU (GPUDirect). Throws
// Error{kUnavailable} with the reason if NICs can't or should not have access.
GpuNicMemory::ForNics forNics(const Gpu& gpu, const MemoryView& view);

} // namespace dlslime::cuda
