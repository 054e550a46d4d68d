// Part of Engine: memory of GPUs (docs/cuda.md).
#include <thread>

#include "engine/engine.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

// Marks the operation's place in the caller's stream. Called before the lock is
// taken: the caller's thread talks to its own stream. The stream itself copies
// the bytes of a small send into pinned memory, so that the send is like any
// send of processor memory once the stream has come to the mark.
void Engine::meetStream(Operation& operation) {
  auto& gpu = *operation.onDevice;
  gpu.accelerator = &state_.needAccelerator();
  const auto view = operation.view();
  Accelerator::Download before;
  std::shared_ptr<std::byte> pinned;
  if (operation.kind() == Operation::Kind::kSend &&
      view.size <= state_.config.eagerLimitBytes) {
    pinned = gpu.accelerator->pin(view.device, view.size);
    before = {pinned.get(), view.data, view.size};
  }
  gpu.mark = gpu.accelerator->mark(gpu.stream, before);
  gpu.staged = std::move(pinned);
}

std::shared_ptr<Accelerator::StreamBlock> Engine::blockStream(
    const DeviceStream& stream,
    Operation& operation) {
  std::shared_ptr<Accelerator::StreamBlock> hold =
      state_.needAccelerator().hold(stream);
  if (hold) {
    operation.letGoWhenDone(hold);
  }
  return hold;
}

// A driver call under the lock may be kept from returning by a stream that is
// held back, and letting the stream go needs the lock.
bool Engine::responds(milliseconds patience) {
  constexpr milliseconds kLook{1};
  const auto deadline = deadlineAfter(patience);
  while (!state_.mutex.try_lock()) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(kLook);
  }
  const EngineLock lock(state_, std::adopt_lock);
  return true;
}

// Polls copies of GPUs and posts held operations whose streams have come to
// them; true if anything happened. Under the lock.
bool Engine::lookAtGpus(Accelerator& gpus) {
  bool any = gpus.copying() && gpus.poll();
  bool held = false;
  if (state_.watchesGpus.load(std::memory_order_relaxed)) {
    for (const auto& [id, group] : state_.groupRegistry.groups()) {
      any |= group->holds() && group->postHeld();
      held |= group->holds();
    }
    state_.strays.takeReached();
    held |= !state_.strays.empty();
  }
  watchGpus(held);
  return any;
}

// Decides whether GPUs have to be looked at from time to time. `held`:
// operations wait for streams. Under the lock.
void Engine::watchGpus(bool held) {
  const auto* const gpus = state_.accelerator();
  const bool watch = held || (gpus != nullptr && gpus->copying());
  if (watch == state_.watchesGpus.load(std::memory_order_relaxed)) {
    return;
  }
  state_.watchesGpus.store(watch, std::memory_order_seq_cst);
  if (watch) {
    progress_.attend();
  }
}

// Polls until all copies of GPUs, and so the operations that own the copies,
// have ended: at the engine's end no thread looks any more.
void Engine::drainGpus() {
  while (state_.accelerator() != nullptr && state_.accelerator()->copying()) {
    const EngineLock lock(state_);
    state_.accelerator()->poll();
    std::this_thread::yield();
  }
}

} // namespace dlslime
