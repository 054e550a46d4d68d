#pragma once

#include <unistd.h>

#include <string>

#include "cuda/peer_memory.h"
#include "fakes/gpu/fake_gpu.h"
#include "fakes/hex.h"
#include "fakes/status_of.h"
#include "fakes/world.h"

namespace dlslime::testing {

// A process with memory of GPU 0, and the descriptions for peers.
struct Sharer {
  std::vector<std::string> told(cuda::DevicePointer pointer, size_t bytes) {
    std::vector<std::string> all;
    for (const auto id : exports.of(*gpu, pointer, bytes)) {
      all.push_back(toHex(cuda::encode(exports.describe(id))));
    }
    return all;
  }
  uint64_t idOf(cuda::DevicePointer pointer) {
    return exports.of(*gpu, pointer, 1).at(0);
  }

  FakeGpu fake;
  std::shared_ptr<cuda::Gpu> gpu = fake.gpu();
  cuda::Exports exports;
};

// Maps the memory for the GPU and unmaps again; returns the outcome.
inline Status mapping(
    const std::shared_ptr<cuda::Gpu>& gpu,
    const cuda::ExportedAllocation& told,
    uint32_t pid) {
  return statusOf([&] { cuda::Mapping(gpu, told).open(pid); });
}

// A process that has been told of memory of `pid`: the parent, by default.
struct Mapper {
  explicit Mapper(const std::vector<std::string>& told, pid_t pid = getppid())
      : theirs(
            static_cast<uint32_t>(pid),
            [this](int device) { return device == 0 ? gpu : other; },
            [this](
                int,
                std::vector<cuda::Copy> copies,
                Accelerator::Done done) {
              copier.start(std::move(copies));
              running = std::move(done);
            },
            unused) {
    for (const auto& text : told) {
      add(text);
    }
  }
  void add(const std::string& text) {
    const auto bytes = fromHex(text);
    ids.push_back(cuda::decodeAllocation(bytes).id);
    theirs.add(ids.back(), bytes);
  }
  // Copies; unless the status is ok, nothing was copied.
  Status move(
      bool write,
      cuda::DevicePointer here,
      uint64_t there,
      size_t size,
      int device = 0) {
    return statusOf([&] {
      const Piece piece{reinterpret_cast<std::byte*>(here), there, size};
      if (!theirs.move(device, write, {&piece, 1}, [](const Status&) {})) {
        throw Error(ErrorCode::kUnavailable, "not now");
      }
      eventually([&] { return copier.idle() || copier.takeEnded(); });
      running = nullptr;
    });
  }

  FakeGpu fake;
  std::shared_ptr<cuda::Gpu> gpu = fake.gpu(), other = fake.gpu(1);
  cuda::Copier copier{gpu};
  std::shared_ptr<cuda::UnusedMappings> unused =
      std::make_shared<cuda::UnusedMappings>();
  Accelerator::Done running;
  cuda::PeerMemory theirs;
  std::vector<uint64_t> ids;
};

} // namespace dlslime::testing
