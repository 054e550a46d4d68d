// The engine's part that is about memory of GPUs (docs/cuda.md).
#include <thread>

#include "engine/engine.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

// Before the lock is taken: the caller's thread talks to its own stream. What a
// small send sends is put into pinned memory by the stream itself, so that it
// is like any other once the stream has come there.
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

// A call that is made under the lock may be kept from returning by a stream
// that is held back, which is let go under the lock.
bool Engine::responds(milliseconds patience) {
  constexpr milliseconds kLook{1};
  const auto deadline = deadlineAfter(patience);
  while (!EngineLock(state_, std::try_to_lock)) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

// Under the lock.
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

// Whether somebody has to look from time to time; under the lock.
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

// Nobody else looks any more: what is being copied ends, and then its owners.
void Engine::drainGpus() {
  while (state_.accelerator() != nullptr && state_.accelerator()->copying()) {
    const EngineLock lock(state_);
    state_.accelerator()->poll();
    std::this_thread::yield();
  }
}

} // namespace dlslime
