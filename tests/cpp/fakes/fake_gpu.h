#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "core/memory.h"
#include "cuda/gpu.h"
#include "fake_cuda/control.h"

namespace dlslime::testing {

// The fake CUDA driver, as a program meets it that has used its GPU 0 and 1.
class FakeGpu {
 public:
  // The library has state for the whole process: one test, one process.
  FakeGpu() {
    setenv("DLSLIME_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
    library_ = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW);
    if (library_ == nullptr) {
      throw std::runtime_error(dlerror());
    }
  }
  const cuda::Driver& driver() {
    return cuda::loadDriver();
  }
  // What the first use of a tensor on it does.
  void touch(int device) {
    cuda::Context context = nullptr;
    driver().check(driver().primaryContextRetain(&context, device), "touch");
  }
  std::shared_ptr<cuda::Gpu> gpu(int device = 0) {
    touch(device);
    return std::make_shared<cuda::Gpu>(driver(), device);
  }

  cuda::DevicePointer allocate(const cuda::Gpu& gpu, size_t size) {
    const cuda::Gpu::Scope scope(gpu);
    cuda::DevicePointer pointer = 0;
    using Allocate = cuda::Result(cuda::DevicePointer*, size_t);
    driver().check(call<Allocate>("cuMemAlloc_v2")(&pointer, size), "allocate");
    return pointer;
  }
  void free(cuda::DevicePointer pointer) {
    using Free = cuda::Result(cuda::DevicePointer);
    driver().check(call<Free>("cuMemFree_v2")(pointer), "free");
  }
  // Past all streams.
  std::byte* peek(cuda::DevicePointer pointer) {
    return static_cast<std::byte*>(call<FakeCudaPeek>("fakeCudaPeek")(pointer));
  }
  void fill(cuda::DevicePointer pointer, const Bytes& bytes) {
    std::memcpy(peek(pointer), bytes.data(), bytes.size());
  }
  Bytes content(cuda::DevicePointer pointer, size_t size) {
    const auto* const bytes = peek(pointer);
    return {bytes, bytes + size};
  }
  void fail(
      const char* function,
      cuda::Result result,
      int after = 0,
      int times = 1) {
    call<FakeCudaFail>("fakeCudaFail")(
        function, static_cast<int>(result), after, times);
  }
  void delay(int microseconds) {
    call<FakeCudaDelay>("fakeCudaDelay")(microseconds);
  }
  void denyIpc(cuda::DevicePointer pointer) {
    call<FakeCudaDenyIpc>("fakeCudaDenyIpc")(pointer);
  }
  void capture(cuda::Stream stream) {
    call<FakeCudaCapture>("fakeCudaCapture")(stream);
  }
  int live(const char* kind) {
    return call<FakeCudaLive>("fakeCudaLive")(kind);
  }
  cuda::Stream stream(const cuda::Gpu& gpu) {
    const cuda::Gpu::Scope scope(gpu);
    cuda::Stream stream = nullptr;
    driver().check(
        driver().streamCreate(&stream, cuda::kStreamNonBlocking, 0), "stream");
    return stream;
  }

 private:
  template <typename Function>
  Function* call(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void* library_;
};

} // namespace dlslime::testing
