#pragma once

#include <gtest/gtest.h>

#include "fakes/child_process.h"
#include "fakes/gpu/gpu_memory.h"
#include "fakes/log_capture.h"
#include "fakes/peers/file_rendezvous.h"

// Two processes with a GPU each; the test is rank 0.

namespace dlslime::testing {

constexpr size_t kSize = 3'000'000;
constexpr size_t kPiece = 512 << 10; // of mapped memory
constexpr int kPieces = 6;
enum Tag : uint32_t { kThere = 1, kBack, kTurn };

inline Node joinAs(const std::string& folder, int rank, Config config = {}) {
  Node node;
  config.streamWaits = true;
  node.engine = std::make_shared<Engine>(config);
  GroupOptions options;
  options.name = "gpus";
  options.rank = rank;
  options.size = 2;
  options.rendezvous = std::make_shared<FileRendezvous>(folder);
  node.group = node.engine->join(options);
  return node;
}

inline bool endsWell(const Operation& operation) {
  return eventually([&] { return operation.done(); }) &&
      operation.status().ok();
}

// Returns the middle of mapped memory, as a tensor in torch's expandable
// segments.
inline MemoryView mappedMemory(GpuSide& gpu) {
  auto memory = gpu.mapped(kPiece, kPieces);
  memory.data += 1000;
  memory.size = kSize;
  return memory;
}

// Receives into the memory and sends back to rank 0, ordered by the stream
// alone.
inline bool echo(Node& node, GpuSide& gpu, const MemoryView& memory) {
  const auto receive = gpu.receive(node, 0, kThere, memory);
  node.engine->blockStream(gpu.place(), *receive);
  const auto send = gpu.send(node, 0, kBack, memory);
  return endsWell(*receive) && endsWell(*send);
}

class GpuProcess : public ::testing::Test {
 protected:
  // Sends bytes to the child; true if the bytes come back.
  bool turn(unsigned seed) {
    const auto bytes = pattern(kSize, seed);
    fake.fill(reinterpret_cast<cuda::DevicePointer>(source.data), bytes);
    const auto back = gpu.receive(node, 1, kBack, target);
    const auto there = gpu.send(node, 1, kThere, source);
    return endsWell(*back) && endsWell(*there) && gpu.content(target) == bytes;
  }

  LogCapture log;
  TemporaryFolder folder;
  FakeGpu fake;
  GpuSide gpu{fake, 0};
  MemoryView source = gpu.memory(kSize), target = gpu.memory(kSize);
  Node node = joinAs(folder.path(), 0);
};

} // namespace dlslime::testing
