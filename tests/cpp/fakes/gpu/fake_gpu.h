#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "cuda/driver/gpu.h"
#include "fake_cuda/control.h"
#include "interface/memory.h"

namespace dlslime::testing {

// The fake CUDA driver, for tests that use GPUs 0 and 1.
class FakeGpu {
 public:
  // The library's state is the process's: run a single test per process.
  FakeGpu() {
    const std::string path = libraryPath();
    setenv("DLSLIME_CUDA_LIBRARY", path.c_str(), 1);
    library_ = dlopen(path.c_str(), RTLD_NOW);
    if (library_ == nullptr) {
      throw std::runtime_error(dlerror());
    }
  }
  const cuda::Driver& driver() {
    return cuda::loadDriver();
  }
  // Makes the primary context, as the first tensor on the GPU does.
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
  // Maps physical memory of so many pieces at consecutive addresses, as torch's
  // expandable segments do (cuMemCreate, cuMemMap); reserves twice the
  // addresses, for growth.
  cuda::DevicePointer allocateMapped(
      const cuda::Gpu& gpu,
      size_t piece,
      int pieces,
      int handleTypes = cuda::kDescriptorHandle) {
    const cuda::Gpu::Scope scope(gpu);
    cuda::DevicePointer base = 0;
    driver().check(
        driver().reserveAddresses(
            &base, 2 * piece * static_cast<size_t>(pieces), 0, 0, 0),
        "reserve");
    for (int i = 0; i < pieces; ++i) {
      mapPiece(gpu, base + piece * static_cast<size_t>(i), piece, handleTypes);
    }
    return base;
  }
  void mapPiece(
      const cuda::Gpu& gpu,
      cuda::DevicePointer pointer,
      size_t size,
      int handleTypes = cuda::kDescriptorHandle) {
    const cuda::Gpu::Scope scope(gpu);
    const fake_cuda::AllocationProperties properties{
        fake_cuda::kPinnedAllocation,
        handleTypes,
        {cuda::kDeviceLocation, gpu.ordinal()},
        nullptr,
        {}};
    using Create = cuda::Result(
        cuda::MemoryHandle*,
        size_t,
        const fake_cuda::AllocationProperties*,
        unsigned long long);
    cuda::MemoryHandle handle = 0;
    driver().check(
        call<Create>("cuMemCreate")(&handle, size, &properties, 0), "create");
    driver().check(driver().map(pointer, size, 0, handle, 0), "map");
    driver().check(driver().releaseHandle(handle), "release");
    const cuda::AccessDescription access{
        {cuda::kDeviceLocation, gpu.ordinal()}, cuda::kReadAndWrite};
    driver().check(driver().setAccess(pointer, size, &access, 1), "access");
  }
  void unmapPiece(cuda::DevicePointer pointer, size_t size) {
    driver().check(driver().unmap(pointer, size), "unmap");
  }
  // Maps the memory of a dma-buf of several allocations; null for any further
  // dma-buf.
  static void* mapRange(int fd, size_t& size) {
    void* const library = dlopen(libraryPath().c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
      return nullptr;
    }
    auto* const map =
        reinterpret_cast<FakeCudaMapRange*>(dlsym(library, "fakeCudaMapRange"));
    dlclose(library); // the program's own reference stays
    return map(fd, &size);
  }
  // Returns the processor's address of the memory; waits for no stream.
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
  void watch(const FakeCudaWatcher* watcher) {
    call<FakeCudaWatch>("fakeCudaWatch")(watcher);
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
  // CMakeLists.txt puts the library beside the program.
  static std::string libraryPath() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() /
        "fake_cuda/libcuda.so.1";
  }
  template <typename Function>
  Function* call(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void* library_;
};

} // namespace dlslime::testing
