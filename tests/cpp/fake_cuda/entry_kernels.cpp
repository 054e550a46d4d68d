// Modules, and launches of two kernels: the copy kernel, whose source is
// compiled for the processor, and a kernel that spins until a word is set
// (benchmarks/gpu/driver/spin.ptx).
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fake_cuda/control.h"
#include "fake_cuda/entry.h"

using namespace dlslime::cuda;
using namespace fake_cuda;

namespace {

struct Index {
  unsigned x;
};
thread_local Index threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

#define KERNEL_PRAGMA(text)
#define __global__ __attribute__((visibility("hidden")))
#include "cuda/copy/copy_pieces.cu"
#undef __global__

constexpr unsigned kWarp = 32;

// Runs the last threads first, as a GPU may.
void runThreads(const std::vector<dlslime_piece>& pieces) {
  for (blockIdx.x = gridDim.x; blockIdx.x-- > 0;) {
    for (threadIdx.x = blockDim.x; threadIdx.x-- > 0;) {
      dlslime_copy_pieces(pieces.data(), static_cast<unsigned>(pieces.size()));
    }
  }
}

// Replaces the addresses by the fake's own addresses of the memory.
bool resolveAll(std::vector<dlslime_piece>& pieces) {
  for (auto& piece : pieces) {
    auto* const to = bytesAt(piece.to, piece.size);
    auto* const from = bytesAt(piece.from, piece.size);
    if (to == nullptr || from == nullptr ||
        (piece.to | piece.from | piece.size) % sizeof(uint4) != 0) {
      return false;
    }
    piece.to = reinterpret_cast<uintptr_t>(to);
    piece.from = reinterpret_cast<uintptr_t>(from);
  }
  return true;
}

// Names of the kernels; a module or function of the fake is a pointer to a
// name.
constexpr const char* kKernels[] = {"dlslime_copy_pieces", "dlslime_spin"};

const char* kernelOf(std::string_view text) {
  for (const char* const name : kKernels) {
    if (text.find(".entry " + std::string(name) + "(") !=
        std::string_view::npos) {
      return name;
    }
  }
  return nullptr;
}

bool copyPieces(
    const std::byte* list,
    unsigned count,
    unsigned blocks,
    unsigned threads) {
  if (faultOf("kernel") != Result::kSuccess) {
    return true; // copies nothing, silently
  }
  std::vector<dlslime_piece> pieces(count);
  std::memcpy(pieces.data(), list, count * sizeof(dlslime_piece));
  if (!resolveAll(pieces)) {
    return false; // an illegal address: the device fails
  }
  gridDim.x = blocks;
  blockDim.x = threads;
  runThreads(pieces);
  return faultOf("kernel fault") == Result::kSuccess;
}

Result enqueueSpin(StreamQueue& queue, void** parameters) {
  DevicePointer address = 0;
  uint32_t value = 0;
  uint64_t limit = 0;
  std::memcpy(&address, parameters[0], sizeof(address));
  std::memcpy(&value, parameters[1], sizeof(value));
  std::memcpy(&limit, parameters[2], sizeof(limit));
  auto* const word = bytesAt(address, sizeof(value));
  if (word == nullptr) {
    return Result::kInvalidValue;
  }
  queue.enqueue([word, value, limit] {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit);
    const auto& seen = *reinterpret_cast<std::atomic<uint32_t>*>(word);
    while (static_cast<int32_t>(seen - value) < 0 &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  });
  return Result::kSuccess;
}

// The loaded modules, kept reachable as a context keeps modules never unloaded.
struct Modules {
  std::mutex mutex;
  std::set<const char**> all; // guarded by mutex
};
Modules& modules() {
  static auto* const made = new Modules;
  return *made;
}

} // namespace

int fake_cuda::liveModules() {
  const std::lock_guard<std::mutex> guard(modules().mutex);
  return static_cast<int>(modules().all.size());
}

FAKE_CUDA_EXPORT Result cuModuleLoadData(Module* module, const void* image) {
  FAKE_CUDA_ENTER(cuModuleLoadData);
  FAKE_CUDA_NEEDS_CONTEXT;
  const char* const name = kernelOf(static_cast<const char*>(image));
  if (name == nullptr) {
    return Result::kInvalidValue;
  }
  waitForAllStreams();
  auto* const made = new const char*(name);
  const std::lock_guard<std::mutex> guard(modules().mutex);
  modules().all.insert(made);
  *module = reinterpret_cast<Module>(made);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuModuleUnload(Module module) {
  auto* const made = reinterpret_cast<const char**>(module);
  const std::lock_guard<std::mutex> guard(modules().mutex);
  modules().all.erase(made);
  delete made;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuModuleGetFunction(Function* function, Module module, const char* name) {
  FAKE_CUDA_ENTER(cuModuleGetFunction);
  *function = reinterpret_cast<Function>(module);
  return std::strcmp(name, *reinterpret_cast<const char**>(module)) == 0
      ? Result::kSuccess
      : Result::kNotFound;
}

FAKE_CUDA_EXPORT Result cuLaunchKernel(
    Function function,
    unsigned blocksX,
    unsigned blocksY,
    unsigned blocksZ,
    unsigned threadsX,
    unsigned threadsY,
    unsigned threadsZ,
    unsigned /*sharedBytes*/,
    Stream stream,
    void** parameters,
    void** /*extra*/) {
  FAKE_CUDA_ENTER(cuLaunchKernel);
  FAKE_CUDA_NEEDS_CONTEXT;
  auto* const queue = queueOf(stream);
  const bool flat = blocksY == 1 && blocksZ == 1 && threadsY == 1 &&
      threadsZ == 1 && blocksX > 0 && threadsX % kWarp == 0;
  if (function == nullptr || queue == nullptr || !flat) {
    return Result::kInvalidValue;
  }
  const std::string_view name = *reinterpret_cast<const char**>(function);
  if (name == "dlslime_spin") {
    return enqueueSpin(*queue, parameters);
  }
  const std::byte* list = nullptr;
  unsigned count = 0;
  std::memcpy(&list, parameters[0], sizeof(list));
  std::memcpy(&count, parameters[1], sizeof(count));
  queue->enqueue([list, count, blocksX, threadsX] {
    return copyPieces(list, count, blocksX, threadsX);
  });
  ++kernelLaunches;
  return Result::kSuccess;
}
