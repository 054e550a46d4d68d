// Modules and launches: the one kernel that there is, by its source, compiled
// for the processor.
#include <cstdlib>
#include <cstring>
#include <string_view>
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
#include "cuda/copy_pieces.cu"
#undef __global__

constexpr unsigned kWarp = 32;

// As threads of a GPU may: the later ones first.
void runThreads(const std::vector<dlslime_piece>& pieces) {
  for (blockIdx.x = gridDim.x; blockIdx.x-- > 0;) {
    for (threadIdx.x = blockDim.x; threadIdx.x-- > 0;) {
      dlslime_copy_pieces(pieces.data(), static_cast<unsigned>(pieces.size()));
    }
  }
}

// With the addresses at which the fake has the memory.
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

bool launch(
    const std::byte* list,
    unsigned count,
    unsigned blocks,
    unsigned threads) {
  if (faultOf("kernel") != Result::kSuccess) {
    return true; // it has copied nothing, and does not say so
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

} // namespace

FAKE_CUDA_EXPORT Result cuModuleGetLoadingMode(LoadingMode* mode) {
  FAKE_CUDA_ENTER(cuModuleGetLoadingMode);
  const char* const asked = std::getenv("CUDA_MODULE_LOADING");
  const bool eager = asked != nullptr && std::string_view(asked) == "EAGER";
  *mode = eager ? LoadingMode::kEager : LoadingMode::kLazy;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuModuleLoadData(Module* module, const void* image) {
  FAKE_CUDA_ENTER(cuModuleLoadData);
  FAKE_CUDA_NEEDS_CONTEXT;
  const std::string_view text(static_cast<const char*>(image));
  if (text.find(".entry dlslime_copy_pieces(") == std::string_view::npos) {
    return Result::kInvalidValue;
  }
  *module = reinterpret_cast<Module>(new char);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuModuleUnload(Module module) {
  delete reinterpret_cast<char*>(module);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuModuleGetFunction(Function* function, Module module, const char* name) {
  FAKE_CUDA_ENTER(cuModuleGetFunction);
  *function = reinterpret_cast<Function>(module);
  return std::strcmp(name, "dlslime_copy_pieces") == 0 ? Result::kSuccess
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
  const std::byte* list = nullptr;
  unsigned count = 0;
  std::memcpy(&list, parameters[0], sizeof(list));
  std::memcpy(&count, parameters[1], sizeof(count));
  queue->enqueue([list, count, blocksX, threadsX] {
    return launch(list, count, blocksX, threadsX);
  });
  ++kernelLaunches;
  return Result::kSuccess;
}
