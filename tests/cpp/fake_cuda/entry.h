#pragma once

#include <atomic>
#include <mutex>

#include "fake_cuda/faults.h"
#include "fake_cuda/memory.h"
#include "fake_cuda/streams.h"

// What the files of exported functions share.

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
// The device of the calling thread's current context; -1: it has none.
int currentDevice();
// Null is the device's default stream.
StreamQueue* queueOf(Stream stream);
int liveStreams();
int liveEvents();
int liveModules();
// Where the processor finds so much memory, pinned or a device's; null: it is
// not all there.
std::byte* bytesAt(DevicePointer pointer, size_t size);
inline std::atomic<int> kernelLaunches{0};

} // namespace fake_cuda

// The beginning of every exported function: fails if a test wants it to.
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
