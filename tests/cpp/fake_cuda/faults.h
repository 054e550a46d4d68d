#pragma once

#include "cuda/driver/cuda_api.h"

namespace fake_cuda {

using dlslime::cuda::Result;

// The error that this call of the function shall end with, if any.
Result faultOf(const char* function);
void addFault(const char* function, int result, int after, int times);

// One call of an exported function, from its beginning to its end.
class Visit {
 public:
  Visit();
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  // The error that the call shall end with, if any.
  Result begin(const char* function) const;
};

} // namespace fake_cuda
