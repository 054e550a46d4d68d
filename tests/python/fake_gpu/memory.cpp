// Memory and streams of the fake driver, for torch.
#include "memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>

#include "fake_cuda/control.h"

namespace fake_gpu {

namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kSegment = 2 << 20;
constexpr size_t kPiece = 256 << 10; // of expandable segments; torch's: 20 MiB
constexpr size_t kDevices = 8;

void check(cuda::Result result, const char* what) {
  TORCH_CHECK(
      result == cuda::Result::kSuccess,
      what,
      " of the fake driver: ",
      static_cast<int>(result));
}

template <typename Function>
Function* find(const char* name) {
  static void* const library =
      dlopen(std::getenv("DLSLIME_CUDA_LIBRARY"), RTLD_NOW);
  TORCH_CHECK(library != nullptr, dlerror());
  auto* const found = reinterpret_cast<Function*>(dlsym(library, name));
  TORCH_CHECK(found != nullptr, name, " is not there");
  return found;
}

// Makes the device's context the thread's, as a first tensor would.
class Inside {
 public:
  explicit Inside(c10::DeviceIndex device) {
    static auto* const push =
        find<cuda::Result(cuda::Context)>("cuCtxPushCurrent_v2");
    check(push(contextOf(device)), "cuCtxPushCurrent");
  }
  ~Inside() {
    static auto* const pop =
        find<cuda::Result(cuda::Context*)>("cuCtxPopCurrent_v2");
    cuda::Context left = nullptr;
    pop(&left);
  }

 private:
  static cuda::Context contextOf(c10::DeviceIndex device) {
    static std::mutex mutex;
    static std::array<cuda::Context, kDevices> contexts{};
    const std::lock_guard<std::mutex> guard(mutex);
    auto& context = contexts.at(static_cast<size_t>(device));
    if (context == nullptr) {
      check(find<cuda::Result(unsigned)>("cuInit")(0), "cuInit");
      check(
          find<cuda::Result(cuda::Context*, int)>("cuDevicePrimaryCtxRetain")(
              &context, device),
          "cuDevicePrimaryCtxRetain");
    }
    return context;
  }
};

// As torch's own: segments that are put together of pieces.
bool expandable() {
  const char* const text = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  return text != nullptr &&
      std::string_view(text).find("expandable_segments:True") !=
      std::string_view::npos;
}

void mapPiece(c10::DeviceIndex device, cuda::DevicePointer pointer) {
  const fake_cuda::AllocationProperties properties{
      fake_cuda::kPinnedAllocation,
      cuda::kDescriptorHandle,
      {cuda::kDeviceLocation, device},
      nullptr,
      {}};
  cuda::MemoryHandle handle = 0;
  check(
      find<cuda::Result(
          cuda::MemoryHandle*,
          size_t,
          const fake_cuda::AllocationProperties*,
          unsigned long long)>("cuMemCreate")(&handle, kPiece, &properties, 0),
      "cuMemCreate");
  check(
      find<cuda::Result(
          cuda::DevicePointer,
          size_t,
          size_t,
          cuda::MemoryHandle,
          unsigned long long)>("cuMemMap")(pointer, kPiece, 0, handle, 0),
      "cuMemMap");
  check(
      find<cuda::Result(cuda::MemoryHandle)>("cuMemRelease")(handle),
      "cuMemRelease");
}

cuda::DevicePointer makeSegment(c10::DeviceIndex device, size_t size) {
  cuda::DevicePointer made = 0;
  if (!expandable()) {
    check(
        find<cuda::Result(cuda::DevicePointer*, size_t)>("cuMemAlloc_v2")(
            &made, size),
        "cuMemAlloc");
    return made;
  }
  check(
      find<cuda::Result(
          cuda::DevicePointer*,
          size_t,
          size_t,
          cuda::DevicePointer,
          unsigned long long)>("cuMemAddressReserve")(&made, size, 0, 0, 0),
      "cuMemAddressReserve");
  for (size_t at = 0; at < size; at += kPiece) {
    mapPiece(device, made + at);
  }
  const cuda::AccessDescription access{
      {cuda::kDeviceLocation, device}, cuda::kReadAndWrite};
  check(
      find<cuda::Result(
          cuda::DevicePointer, size_t, const cuda::AccessDescription*, size_t)>(
          "cuMemSetAccess")(made, size, &access, 1),
      "cuMemSetAccess");
  return made;
}

void freeSegment(cuda::DevicePointer pointer, size_t size) {
  if (!expandable()) {
    find<cuda::Result(cuda::DevicePointer)>("cuMemFree_v2")(pointer);
    return;
  }
  using Free = cuda::Result(cuda::DevicePointer, size_t);
  for (size_t at = 0; at < size; at += kPiece) {
    find<Free>("cuMemUnmap")(pointer + at, kPiece);
  }
  find<Free>("cuMemAddressFree")(pointer, size);
}

struct Block {
  std::byte* data;
  size_t size;
  c10::DeviceIndex device;
  bool used;
};

class Segments final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const auto device = currentDevice();
    void* const data = size == 0 ? nullptr : take(device, size);
    return {data, data, &release, {c10::DeviceType::CUDA, device}};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    copyAsync(currentDevice(), to, from, size);
  }
  void emptyCache();

 private:
  static void release(void* data);
  std::byte* take(c10::DeviceIndex device, size_t size);

  std::mutex mutex_;
  // Guarded by mutex_: segments by their address, each a row of blocks.
  std::map<std::byte*, std::vector<Block>> segments_;
};

Segments& segments() {
  static auto* const all = new Segments; // tensors outlive static objects
  return *all;
}

std::byte* Segments::take(c10::DeviceIndex device, size_t size) {
  const size_t wanted = (size + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [base, blocks] : segments_) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      auto& block = blocks[i];
      if (block.used || block.device != device || block.size < wanted) {
        continue;
      }
      const Block rest{block.data + wanted, block.size - wanted, device, false};
      block.size = wanted;
      block.used = true;
      auto* const data = block.data;
      if (rest.size > 0) {
        blocks.insert(blocks.begin() + static_cast<ptrdiff_t>(i) + 1, rest);
      }
      return data;
    }
  }
  const Inside inside(device);
  const size_t whole =
      (std::max(wanted, kSegment) + kPiece - 1) / kPiece * kPiece;
  auto* const data = reinterpret_cast<std::byte*>(makeSegment(device, whole));
  auto& blocks = segments_[data];
  blocks.push_back({data, wanted, device, true});
  if (whole > wanted) {
    blocks.push_back({data + wanted, whole - wanted, device, false});
  }
  return data;
}

void Segments::release(void* data) {
  if (data == nullptr) {
    return;
  }
  auto& self = segments();
  const std::lock_guard<std::mutex> guard(self.mutex_);
  auto& blocks =
      std::prev(self.segments_.upper_bound(static_cast<std::byte*>(data)))
          ->second;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].data == data) {
      blocks[i].used = false;
    }
  }
  for (size_t i = 1; i < blocks.size();) { // neighbours become one
    if (blocks[i].used || blocks[i - 1].used) {
      ++i;
      continue;
    }
    blocks[i - 1].size += blocks[i].size;
    blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Segments::emptyCache() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::erase_if(segments_, [](const auto& entry) {
    const auto& blocks = entry.second;
    if (blocks.size() != 1 || blocks.front().used) {
      return false;
    }
    freeSegment(
        reinterpret_cast<cuda::DevicePointer>(entry.first),
        blocks.front().size);
    return true;
  });
}

} // namespace

c10::DeviceIndex& currentDevice() {
  thread_local c10::DeviceIndex device = 0;
  return device;
}

cuda::Stream& currentStream(c10::DeviceIndex device) {
  thread_local std::array<cuda::Stream, kDevices> streams{};
  // torch's own takes -1 for the current device, too.
  return streams.at(static_cast<size_t>(device < 0 ? currentDevice() : device));
}

cuda::Stream newStream(c10::DeviceIndex device) {
  const Inside inside(device);
  cuda::Stream stream = nullptr;
  check(
      find<cuda::Result(cuda::Stream*, unsigned, int)>(
          "cuStreamCreateWithPriority")(&stream, cuda::kStreamNonBlocking, 0),
      "cuStreamCreateWithPriority");
  return stream;
}

void record(void** event, c10::DeviceIndex device, cuda::Stream stream) {
  const Inside inside(device);
  if (*event == nullptr) {
    check(
        find<cuda::Result(void**, unsigned)>("cuEventCreate")(
            event, cuda::kEventDisableTiming),
        "cuEventCreate");
  }
  check(
      find<cuda::Result(void*, cuda::Stream)>("cuEventRecord")(*event, stream),
      "cuEventRecord");
}

void block(void* event, c10::DeviceIndex device, cuda::Stream stream) {
  const Inside inside(device);
  check(
      find<cuda::Result(cuda::Stream, void*, unsigned)>("cuStreamWaitEvent")(
          stream, event, 0),
      "cuStreamWaitEvent");
}

bool reached(void* event) {
  return find<cuda::Result(void*)>("cuEventQuery")(event) ==
      cuda::Result::kSuccess;
}

void destroy(void* event) noexcept {
  if (event != nullptr) {
    find<cuda::Result(void*)>("cuEventDestroy_v2")(event);
  }
}

bool idle(c10::DeviceIndex device, cuda::Stream stream) {
  const Inside inside(device);
  return find<cuda::Result(cuda::Stream)>("cuStreamQuery")(stream) ==
      cuda::Result::kSuccess;
}

void synchronize(c10::DeviceIndex device, cuda::Stream stream) {
  const Inside inside(device);
  check(
      find<cuda::Result(cuda::Stream)>("cuStreamSynchronize")(stream),
      "cuStreamSynchronize");
}

void copyAsync(
    c10::DeviceIndex device,
    void* to,
    const void* from,
    size_t size) {
  if (size == 0) {
    return;
  }
  const Inside inside(device);
  using Copy = cuda::Result(
      cuda::DevicePointer, cuda::DevicePointer, size_t, cuda::Stream);
  check(
      find<Copy>("cuMemcpyAsync")(
          reinterpret_cast<cuda::DevicePointer>(to),
          reinterpret_cast<cuda::DevicePointer>(from),
          size,
          currentStream(device)),
      "cuMemcpyAsync");
}

void* peek(void* data) {
  return find<FakeCudaPeek>("fakeCudaPeek")(reinterpret_cast<uint64_t>(data));
}

void launchHost(c10::DeviceIndex device, void (*function)(void*), void* data) {
  const Inside inside(device);
  using Launch = cuda::Result(cuda::Stream, void (*)(void*), void*);
  check(
      find<Launch>("cuLaunchHostFunc")(currentStream(device), function, data),
      "cuLaunchHostFunc");
}

c10::Allocator& allocator() {
  return segments();
}

void emptyCache() {
  segments().emptyCache();
}

} // namespace fake_gpu
