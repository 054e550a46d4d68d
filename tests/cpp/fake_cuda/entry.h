#pragma once

#include <atomic>
#include <mutex>

#include "fake_cuda/faults.h"
#include "fake_cuda/memory.h"
#include "fake_cuda/streams.h"

// Declarations for the files of exported functions.

namespace dlslime::cuda {
struct ContextImpl {
  explicit ContextImpl(int of) : device(of) {}
  const int device;
  std::atomic<int> retained{0};
};
struct StreamImpl : fake_cuda::StreamQueue {
  using StreamQueue::StreamQueue;
};
struct EventImpl {
  std::mutex mutex;
  fake_cuda::PointPtr point; // guarded by mutex; null: never recorded
};
} // namespace dlslime::cuda

namespace fake_cuda {

using dlslime::cuda::Context;
using dlslime::cuda::Device;
using dlslime::cuda::Event;
using dlslime::cuda::Stream;

int deviceCount();
bool initialized();
Context contextOf(int device);
// Returns the device of the calling thread's current context, or -1.
int currentDevice();
// Null stands for the device's default stream.
StreamQueue* queueOf(Stream stream);
int liveStreams();
int liveEvents();
int liveModules();
// Returns the processor's address of pinned or device memory; null if not all
// of the bytes exist.
std::byte* bytesAt(DevicePointer pointer, size_t size);
inline std::atomic<int> kernelLaunches{0};

} // namespace fake_cuda

// Begins an exported function: returns the error that a test wants.
#define FAKE_CUDA_ENTER(name)                    \
  const fake_cuda::Visit visit_;                 \
  do {                                           \
    const auto fault_ = visit_.begin(#name);     \
    if (fault_ != fake_cuda::Result::kSuccess) { \
      return fault_;                             \
    }                                            \
  } while (false)
#define FAKE_CUDA_NEEDS_CONTEXT                  \
  do {                                           \
    if (fake_cuda::currentDevice() < 0) {        \
      return fake_cuda::Result::kInvalidContext; \
    }                                            \
  } while (false)
#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))
