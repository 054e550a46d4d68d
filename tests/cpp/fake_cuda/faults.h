#pragma once

#include "cuda/cuda_api.h"

namespace fake_cuda {

using dlslime::cuda::Result;

// The error that this call of the function shall end with, if any.
Result faultOf(const char* function);
void addFault(const char* function, int result, int after, int times);

} // namespace fake_cuda
