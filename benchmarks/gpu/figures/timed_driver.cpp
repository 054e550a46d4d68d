// A libcuda between dlslime and the real libcuda (DLSLIME_CUDA_LIBRARY): adds
// up the number and time of each call, for the process's first thread and for
// all further threads. calls.py reads the sums.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "cuda/driver/driver.h"

using dlslime::cuda::Driver;
using dlslime::cuda::Result;

// Calls made again and again by messages and transfers, with Driver's names;
// all further calls go to the real library uncounted.
#define TIMED_CALLS(call)                                                     \
  call(cuCtxPushCurrent, contextPush) call(cuCtxPopCurrent, contextPop) call( \
      cuThreadExchangeStreamCaptureMode,                                      \
      exchangeCaptureMode) call(cuStreamIsCapturing, streamIsCapturing)       \
      call(cuStreamQuery, streamQuery) call(                                  \
          cuStreamWriteValue32, streamWriteValue)                             \
          call(cuStreamWaitValue32, streamWaitValue) call(                    \
              cuPointerGetAttributes, pointerGetAttributes)                   \
              call(cuMemGetAddressRange, addressRange) call(                  \
                  cuMemHostAlloc, hostAlloc) call(cuMemcpyAsync, memcpyAsync) \
                  call(cuMemcpyBatchAsync, memcpyBatchAsync)                  \
                      call(cuLaunchKernel, launchKernel)                      \
                          call(cuEventRecord, eventRecord)                    \
                              call(cuEventQuery, eventQuery)                  \
                                  call(cuIpcGetMemHandle, ipcGetHandle)       \
                                      call(cuIpcOpenMemHandle, ipcOpenHandle)

namespace {

enum Call : int {
#define TIMED_ID(name, member) name,
  TIMED_CALLS(TIMED_ID)
#undef TIMED_ID
      kCalls
};

struct Sum {
  std::atomic<uint64_t> calls{0}, nanoseconds{0};
};

std::array<std::array<Sum, 2>, kCalls> sums;

void note(Call which, std::chrono::nanoseconds took) {
  static thread_local const bool other = gettid() != getpid();
  auto& sum = sums[which][other ? 1 : 0];
  sum.calls.fetch_add(1, std::memory_order_relaxed);
  sum.nanoseconds.fetch_add(took.count(), std::memory_order_relaxed);
}

template <typename Function, Call kCall>
struct Timed;

template <typename... Arguments, Call kCall>
struct Timed<Result (*)(Arguments...), kCall> {
  static inline Result (*real)(Arguments...) = nullptr;
  static Result call(Arguments... arguments) {
    const auto begin = std::chrono::steady_clock::now();
    const auto result = real(arguments...);
    note(kCall, std::chrono::steady_clock::now() - begin);
    return result;
  }
};

struct Entry {
  const char* name;
  void* wrapper;
  void (*setReal)(void* real);
};

const std::array<Entry, kCalls> entries{{
#define TIMED_ENTRY(name, member)                                         \
  {#name,                                                                 \
   reinterpret_cast<void*>(&Timed<decltype(Driver::member), name>::call), \
   [](void* real) {                                                       \
     Timed<decltype(Driver::member), name>::real =                        \
         reinterpret_cast<decltype(Driver::member)>(real);                \
   }},
    TIMED_CALLS(TIMED_ENTRY)
#undef TIMED_ENTRY
}};

using GetProcAddress =
    Result(const char*, void**, int version, uint64_t flags, int* status);

GetProcAddress* realLookUp() {
  const char* const other = std::getenv("DLSLIME_GPU_CHECK_REAL_LIBRARY");
  void* const library =
      dlopen(other != nullptr ? other : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr
                            : reinterpret_cast<GetProcAddress*>(
                                  dlsym(library, "cuGetProcAddress_v2"));
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) Result cuGetProcAddress_v2(
    const char* name,
    void** function,
    int version,
    uint64_t flags,
    int* status) {
  static GetProcAddress* const real = realLookUp();
  if (real == nullptr) {
    return Result::kNotInitialized;
  }
  const auto result = real(name, function, version, flags, status);
  for (const auto& entry : entries) {
    if (result == Result::kSuccess && *function != nullptr &&
        std::strcmp(entry.name, name) == 0) {
      entry.setReal(*function);
      *function = entry.wrapper;
    }
  }
  return result;
}

__attribute__((visibility("default"))) int timed_calls() {
  return kCalls;
}

__attribute__((visibility("default"))) const char* timed_name(int call) {
  return entries.at(call).name;
}

// Returns the sums of the first thread (`others` = 0) or of all further threads
// (1).
__attribute__((visibility("default"))) void
timed_sum(int call, int others, uint64_t* calls, uint64_t* nanoseconds) {
  const auto& sum = sums.at(call).at(others);
  *calls = sum.calls.load(std::memory_order_relaxed);
  *nanoseconds = sum.nanoseconds.load(std::memory_order_relaxed);
}
}
