#pragma once

#include <optional>

#include "cuda/copy/stream_words.h"
#include "fakes/gpu/fake_gpu.h"
#include "fakes/world.h"

namespace dlslime::testing {

// A send or receive on memory of a fake GPU, in the order of a stream.
class GpuOperation final : public Operation {
 public:
  GpuOperation(
      Kind kind,
      int peer,
      uint32_t tag,
      MemoryView view,
      cuda::Stream stream)
      : Operation(kind, peer, tag, view) {
    onDevice = std::make_unique<OnDevice>();
    onDevice->stream = {view.device, stream};
  }
  bool released() const {
    return released_;
  }

 private:
  void releaseMemory() override {
    released_ = true;
  }
  std::atomic<bool> released_{false};
};
using GpuOperationPtr = std::shared_ptr<GpuOperation>;

// A fake GPU with a stream that can be paused.
class GpuSide {
 public:
  explicit GpuSide(FakeGpu& fake, int device = 0)
      : fake_(fake), gpu_(fake.gpu(device)), words_(gpu_) {
    stream_ = fake.stream(*gpu_);
  }
  ~GpuSide() {
    go(); // or the fake driver's thread waits for ever
    fake_.driver().streamSynchronize(stream_);
  }

  cuda::Stream stream() const {
    return stream_;
  }
  DeviceStream place() const {
    return {gpu_->ordinal(), stream_};
  }
  MemoryView memory(size_t size) {
    const auto pointer = fake_.allocate(*gpu_, size);
    return {
        reinterpret_cast<std::byte*>(pointer), size, nullptr, gpu_->ordinal()};
  }
  // Maps memory piece by piece, as torch's expandable segments do.
  MemoryView mapped(size_t piece, int pieces) {
    const auto pointer = fake_.allocateMapped(*gpu_, piece, pieces);
    return {
        reinterpret_cast<std::byte*>(pointer),
        piece * static_cast<size_t>(pieces),
        nullptr,
        gpu_->ordinal()};
  }
  // Replaces the physical memory, so that the bytes are gone.
  void remap(std::byte* piece, size_t size) {
    const auto pointer = reinterpret_cast<cuda::DevicePointer>(piece);
    fake_.unmapPiece(pointer, size);
    fake_.mapPiece(*gpu_, pointer, size);
  }
  MemoryView filled(const Bytes& bytes) {
    const auto view = memory(bytes.size());
    fake_.fill(reinterpret_cast<cuda::DevicePointer>(view.data), bytes);
    return view;
  }
  Bytes content(MemoryView view) {
    return fake_.content(
        reinterpret_cast<cuda::DevicePointer>(view.data), view.size);
  }
  // Holds back all later work of the stream until go().
  void pause() {
    word_.emplace(words_.take());
    word_->holdBack(stream_);
  }
  void go() {
    if (word_) {
      word_->set();
      word_.reset();
    }
  }
  bool idle() {
    return fake_.driver().streamQuery(stream_) == cuda::Result::kSuccess;
  }
  // Enqueues a copy in the stream.
  void copy(MemoryView to, MemoryView from) {
    const cuda::Gpu::Scope scope(*gpu_);
    fake_.driver().check(
        fake_.driver().memcpyAsync(
            reinterpret_cast<cuda::DevicePointer>(to.data),
            reinterpret_cast<cuda::DevicePointer>(from.data),
            from.size,
            stream_),
        "copy");
  }

  GpuOperationPtr send(Node& node, int peer, uint32_t tag, MemoryView view) {
    return post(node, Operation::Kind::kSend, peer, tag, view);
  }
  GpuOperationPtr receive(Node& node, int peer, uint32_t tag, MemoryView view) {
    return post(node, Operation::Kind::kReceive, peer, tag, view);
  }

 private:
  GpuOperationPtr post(
      Node& node,
      Operation::Kind kind,
      int peer,
      uint32_t tag,
      MemoryView view) {
    auto operation =
        std::make_shared<GpuOperation>(kind, peer, tag, view, stream_);
    kind == Operation::Kind::kSend
        ? node.engine->send(*node.group, operation)
        : node.engine->receive(*node.group, operation);
    return operation;
  }

  FakeGpu& fake_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  cuda::StreamWords words_;
  std::optional<cuda::StreamWords::Word> word_;
  cuda::Stream stream_ = nullptr;
};

} // namespace dlslime::testing
