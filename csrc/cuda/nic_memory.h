#pragma once

#include "cuda/driver/gpu.h"
#include "interface/accelerator.h"

namespace dlslime::cuda {

// GPUDirect: what NICs need to get at memory of a GPU. Throws
// Error{kUnavailable}: they can't, or should not, and why.
Accelerator::ForNics forNics(const Gpu& gpu, const MemoryView& view);

} // namespace dlslime::cuda
