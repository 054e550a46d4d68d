#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver/cuda_api.h"

namespace fake_cuda {

// Of cuMemCreate, which tests alone call.
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

// What tests ask of the fake driver beyond CUDA's own functions. Exported by
// the library under these names; found with dlsym.
extern "C" {

// From its `after`-th next call on, `times` calls of the function fail with
// this error. As does FAKE_CUDA_FAIL="cuIpcOpenMemHandle=217", for good and
// from the start, several with commas between them. "copy" is one that a stream
// has begun: the device fails. "fabric" is any use of a fabric handle; "kernel"
// a launch that copies nothing, "kernel fault" one that the device fails at.
using FakeCudaFail =
    void(const char* function, int result, int after, int times);
// Everything that a stream does begins late by up to so many microseconds. As
// does FAKE_CUDA_DELAY_US; 50 otherwise.
using FakeCudaDelay = void(int microseconds);
// FAKE_CUDA_ROOM: a stream takes so many launches; whoever has another one
// waits until there is room, and keeps others from making theirs in any stream.

// How many there are now: "allocations", "imports", "streams", "events",
// "handles", "pinned", "contexts", "modules"; of "launches" all there ever
// were.
using FakeCudaLive = int(const char* kind);
// Where the processor finds device memory, which it can't touch under the
// address that the driver gave.
using FakeCudaPeek = void*(uint64_t device);
// This allocation can't be exported, as if it were of a pool.
using FakeCudaDenyIpc = void(uint64_t device);
// What a dma-buf of the fake driver stands for that is of several allocations,
// mapped anew (munmap); null: it is of one, whose memory it is itself.
using FakeCudaMapRange = void*(int fd, size_t* size);
// Is called at the beginning of each exported function, then for the error that
// the call shall end with (0: it goes well), and at its end, all on the calling
// thread; null: nothing is.
struct FakeCudaWatcher {
  void (*enter)();
  int (*begin)(const char* function);
  void (*leave)();
};
using FakeCudaWatch = void(const FakeCudaWatcher* watcher);
// This stream is being captured into a graph; null: none is.
using FakeCudaCapture = void(void* stream);

} // extern "C"
