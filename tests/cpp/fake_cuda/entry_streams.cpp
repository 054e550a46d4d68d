// Streams, events, and words that streams write and wait for.
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "fake_cuda/control.h"
#include "fake_cuda/entry.h"

using namespace dlslime::cuda;

namespace fake_cuda {

namespace {

std::mutex mutex;
// Guarded by mutex; never destroyed, since threads may run until the end.
std::set<Stream>& streams() {
  static auto* all = new std::set<Stream>;
  return *all;
}
std::atomic<int> events{0};
std::atomic<Stream> captured{nullptr};
thread_local auto captureMode = CaptureMode::kGlobal;

// Refuses a call that spoils a graph capture by any thread, unless the calling
// thread has set the relaxed mode.
#define FAKE_CUDA_UNSAFE                                             \
  if (captured != nullptr && captureMode != CaptureMode::kRelaxed) { \
    return Result::kStreamCaptureUnsupported;                        \
  }

// Returns the processor's address of a word; null if no stream can reach the
// word.
std::atomic<uint32_t>* wordAt(DevicePointer address) {
  if (address % sizeof(uint32_t) != 0) {
    return nullptr;
  }
  if (const auto allocation = Memory::instance().find(address)) {
    return reinterpret_cast<std::atomic<uint32_t>*>(
        allocation->bytes() + (address - allocation->base()));
  }
  return Memory::instance().pinned(address, sizeof(uint32_t))
      ? reinterpret_cast<std::atomic<uint32_t>*>(address)
      : nullptr;
}

} // namespace

StreamQueue* queueOf(Stream stream) {
  static auto* defaults = new std::map<int, StreamQueue*>;
  const std::lock_guard<std::mutex> guard(mutex);
  if (stream != nullptr) {
    return streams().contains(stream) ? stream : nullptr;
  }
  const int device = currentDevice();
  auto*& queue = (*defaults)[device];
  if (queue == nullptr) {
    queue = new StreamQueue(device);
  }
  return queue;
}

int liveStreams() {
  const std::lock_guard<std::mutex> guard(mutex);
  return static_cast<int>(streams().size());
}

int liveEvents() {
  return events;
}

} // namespace fake_cuda

using namespace fake_cuda;

FAKE_CUDA_EXPORT Result
cuStreamCreateWithPriority(Stream* stream, unsigned, int /*priority*/) {
  FAKE_CUDA_ENTER(cuStreamCreateWithPriority);
  FAKE_CUDA_NEEDS_CONTEXT;
  *stream = new StreamImpl(currentDevice());
  const std::lock_guard<std::mutex> guard(fake_cuda::mutex);
  streams().insert(*stream);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuStreamDestroy_v2(Stream stream) {
  FAKE_CUDA_ENTER(cuStreamDestroy);
  {
    const std::lock_guard<std::mutex> guard(fake_cuda::mutex);
    if (streams().erase(stream) == 0) {
      return Result::kInvalidHandle;
    }
  }
  delete stream;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuStreamQuery(Stream stream) {
  FAKE_CUDA_ENTER(cuStreamQuery);
  FAKE_CUDA_UNSAFE;
  auto* const queue = queueOf(stream);
  if (queue == nullptr) {
    return Result::kInvalidHandle;
  }
  return queue->idle() ? queue->result() : Result::kNotReady;
}

FAKE_CUDA_EXPORT Result cuStreamSynchronize(Stream stream) {
  FAKE_CUDA_ENTER(cuStreamSynchronize);
  FAKE_CUDA_UNSAFE;
  auto* const queue = queueOf(stream);
  if (queue == nullptr) {
    return Result::kInvalidHandle;
  }
  queue->mark()->wait();
  return queue->result();
}

FAKE_CUDA_EXPORT Result
cuStreamIsCapturing(Stream stream, CaptureStatus* status) {
  FAKE_CUDA_ENTER(cuStreamIsCapturing);
  *status = stream != nullptr && stream == captured ? CaptureStatus::kActive
                                                    : CaptureStatus::kNone;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  FAKE_CUDA_ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, captureMode);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT void fakeCudaCapture(void* stream) {
  captured = static_cast<Stream>(stream);
}

FAKE_CUDA_EXPORT Result cuEventCreate(Event* event, unsigned /*flags*/) {
  FAKE_CUDA_ENTER(cuEventCreate);
  FAKE_CUDA_NEEDS_CONTEXT;
  *event = new EventImpl;
  ++events;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuEventDestroy_v2(Event event) {
  FAKE_CUDA_ENTER(cuEventDestroy);
  delete event;
  --events;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuEventRecord(Event event, Stream stream) {
  FAKE_CUDA_ENTER(cuEventRecord);
  auto* const queue = queueOf(stream);
  if (queue == nullptr) {
    return Result::kInvalidHandle;
  }
  const std::lock_guard<std::mutex> guard(event->mutex);
  event->point = queue->mark();
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuEventQuery(Event event) {
  FAKE_CUDA_ENTER(cuEventQuery);
  FAKE_CUDA_UNSAFE;
  const std::lock_guard<std::mutex> guard(event->mutex);
  if (event->point == nullptr) {
    return Result::kSuccess;
  }
  return event->point->reached() ? event->point->result() : Result::kNotReady;
}

FAKE_CUDA_EXPORT Result
cuEventElapsedTime(float* milliseconds, Event begin, Event end) {
  FAKE_CUDA_ENTER(cuEventElapsedTime);
  const std::scoped_lock guard(begin->mutex, end->mutex);
  if (!begin->point || !end->point || !begin->point->reached() ||
      !end->point->reached()) {
    return Result::kNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(
                      end->point->when() - begin->point->when())
                      .count();
  return Result::kSuccess;
}

// Runs `function` in the stream's turn; `function` must not call the driver.
FAKE_CUDA_EXPORT Result
cuLaunchHostFunc(Stream stream, void (*function)(void*), void* data) {
  FAKE_CUDA_ENTER(cuLaunchHostFunc);
  auto* const queue = queueOf(stream);
  if (queue == nullptr) {
    return Result::kInvalidHandle;
  }
  queue->enqueue([function, data] {
    function(data);
    return true;
  });
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuStreamWaitEvent(Stream stream, Event event, unsigned /*flags*/) {
  FAKE_CUDA_ENTER(cuStreamWaitEvent);
  auto* const queue = queueOf(stream);
  if (queue == nullptr) {
    return Result::kInvalidHandle;
  }
  const std::lock_guard<std::mutex> guard(event->mutex);
  if (const auto point = event->point) {
    queue->enqueue([point] {
      point->wait();
      return true;
    });
  }
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuStreamWriteValue32_v2(
    Stream stream,
    DevicePointer address,
    uint32_t value,
    unsigned /*flags*/) {
  FAKE_CUDA_ENTER(cuStreamWriteValue32);
  auto* const queue = queueOf(stream);
  auto* const word = wordAt(address);
  if (queue == nullptr || word == nullptr) {
    return Result::kInvalidValue;
  }
  queue->enqueue([word, value] {
    word->store(value, std::memory_order_release);
    return true;
  });
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuStreamWaitValue32_v2(
    Stream stream,
    DevicePointer address,
    uint32_t value,
    unsigned flags) {
  FAKE_CUDA_ENTER(cuStreamWaitValue32);
  auto* const queue = queueOf(stream);
  auto* const word = wordAt(address);
  if (queue == nullptr || word == nullptr || flags != kWaitValueAtLeast) {
    return Result::kInvalidValue;
  }
  queue->enqueue([word, value] {
    while (static_cast<int32_t>(word->load(std::memory_order_acquire) - value) <
           0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  });
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT void
fakeCudaFail(const char* function, int result, int after, int times) {
  addFault(function, result, after, times);
}

FAKE_CUDA_EXPORT void fakeCudaDelay(int microseconds) {
  delayMicroseconds = microseconds;
}

FAKE_CUDA_EXPORT int fakeCudaLive(const char* kind) {
  const std::string_view what = kind;
  if (what == "allocations" || what == "imports") {
    return Memory::instance().count(what == "imports");
  }
  if (what == "launches") {
    return kernelLaunches;
  }
  if (what == "handles") {
    return Memory::instance().handleCount();
  }
  if (what == "contexts") {
    int held = 0;
    for (int device = 0; device < deviceCount(); ++device) {
      held += contextOf(device)->retained;
    }
    return held;
  }
  if (what == "pinned") {
    return Memory::instance().pinnedCount();
  }
  if (what == "modules") {
    return liveModules();
  }
  return what == "streams" ? liveStreams() : liveEvents();
}
