#pragma once

#include "cuda/driver/cuda_api.h"

namespace fake_cuda {

using dlslime::cuda::Result;

// Returns the error planned for a call of the function, or kSuccess.
Result faultOf(const char* function);
void addFault(const char* function, int result, int after, int times);

// A call of an exported function, from beginning to end.
class Visit {
 public:
  Visit();
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  // Returns the error planned for the call, or kSuccess.
  Result begin(const char* function) const;
};

} // namespace fake_cuda
