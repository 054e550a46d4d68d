#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver/cuda_api.h"

namespace fake_cuda {

// For cuMemCreate, which only tests call.
struct AllocationProperties { // CUmemAllocationProp
  int type;
  int requestedHandleTypes;
  dlslime::cuda::MemoryLocation location;
  void* windowsOnly;
  struct {
    unsigned char compressible, gpuDirect;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
constexpr int kPinnedAllocation = 1; // CU_MEM_ALLOCATION_TYPE_PINNED

} // namespace fake_cuda

// Functions for tests, beyond the CUDA API. The library exports the functions
// under these names, and tests find each with dlsym.
extern "C" {

// Makes `times` calls of the function fail with `result`, after `after` calls
// that succeed. FAKE_CUDA_FAIL="cuIpcOpenMemHandle=217,cuInit=100" makes all
// calls of both functions fail. "copy" is a copy begun by a stream: the device
// fails. "fabric" is any use of a fabric handle, "kernel" a launch that copies
// nothing, "kernel fault" a launch at which the device fails.
using FakeCudaFail =
    void(const char* function, int result, int after, int times);
// Sets the greatest random delay before each piece of a stream's work. In
// microseconds; initially FAKE_CUDA_DELAY_US, or 50.
using FakeCudaDelay = void(int microseconds);
// FAKE_CUDA_ROOM: number of launches that a stream takes. A thread with a
// further launch waits for room, and meanwhile no thread can launch in any
// stream.

// Returns the present number of "allocations", "imports", "streams", "events",
// "handles", "pinned", "contexts" or "modules"; for "launches" the total.
using FakeCudaLive = int(const char* kind);
// Returns the processor's address of device memory; the processor can't touch
// the memory at the device's address.
using FakeCudaPeek = void*(uint64_t device);
// Makes the allocation impossible to export, as memory of a pool is.
using FakeCudaDenyIpc = void(uint64_t device);
// Returns a new mapping (for munmap) of the allocations behind a dma-buf; null
// if the dma-buf is itself the memory of a single allocation.
using FakeCudaMapRange = void*(int fd, size_t* size);
// Called at each exported function, on the calling thread: enter() at the
// beginning, begin() for the error of the call (0: success), leave() at the
// end.
struct FakeCudaWatcher {
  void (*enter)();
  int (*begin)(const char* function);
  void (*leave)();
};
using FakeCudaWatch = void(const FakeCudaWatcher* watcher);
// Sets the stream being captured into a graph; null for no capture.
using FakeCudaCapture = void(void* stream);

} // extern "C"
