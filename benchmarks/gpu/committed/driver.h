#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/driver/cuda_api.h" // declarations only, as of cuda.h

namespace committed {

using dlslime::cuda::Context;
using dlslime::cuda::DevicePointer;
using dlslime::cuda::Event;
using dlslime::cuda::Function;
using dlslime::cuda::IpcMemoryHandle;
using dlslime::cuda::Module;
using dlslime::cuda::Result;
using dlslime::cuda::Stream;

constexpr unsigned kRegisterPortableAndMapped = 3;

// The functions of libcuda called by the prototype, under the library's names
// (DLSLIME_CUDA_LIBRARY names a different library, for tests).
struct Driver {
  Result (*init)(unsigned);
  Result (*getErrorName)(Result, const char**);
  Result (*deviceGetCount)(int*);
  Result (*retainContext)(Context*, int device);
  Result (*setContext)(Context);
  Result (*allocate)(DevicePointer*, size_t);
  Result (*free)(DevicePointer);
  Result (*hostRegister)(void*, size_t, unsigned);
  Result (*hostPointer)(DevicePointer*, void*, unsigned);
  Result (*copy)(DevicePointer to, DevicePointer from, size_t, Stream);
  Result (*streamCreate)(Stream*, unsigned, int);
  Result (*streamSynchronize)(Stream);
  Result (*writeValue)(Stream, DevicePointer, uint32_t, unsigned);
  Result (*waitValue)(Stream, DevicePointer, uint32_t, unsigned);
  Result (*eventCreate)(Event*, unsigned);
  Result (*eventRecord)(Event, Stream);
  Result (*eventQuery)(Event);
  Result (*eventElapsed)(float* milliseconds, Event, Event);
  Result (*streamWaitEvent)(Stream, Event, unsigned);
  Result (*ipcGetHandle)(IpcMemoryHandle*, DevicePointer);
  Result (*ipcOpenHandle)(DevicePointer*, IpcMemoryHandle, unsigned);
  Result (*moduleLoad)(Module*, const void*);
  Result (*moduleFunction)(Function*, Module, const char*);
  Result (*launch)(
      Function,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      Stream,
      void**,
      void**);

  // Throws std::runtime_error unless the call succeeded.
  void check(Result result, const char* what) const;
};

// Opens the library and initialises the driver. Throws std::runtime_error.
const Driver& driver();

} // namespace committed

// Calls a function of the driver; throws std::runtime_error on failure.
#define CALL(function, ...)  \
  committed::driver().check( \
      committed::driver().function(__VA_ARGS__), #function)
