#include "engine/core/engine_core.h"

#include "engine/progress/engine_thread.h"

namespace dlslime {

namespace {
// Runs a step of the engine's end, perhaps from the beginning again. A step
// that repeatedly finds no memory is left out: the process goes on without an
// engine, and peers see the end at the sockets.
template <typename Step>
void endBy(const Step& step) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    if (surviveWantOfMemory("the end of this process's engine", step)) {
      return;
    }
  }
}
} // namespace

EngineCore::EngineCore(const Config& config) : state(config) {
  static_cast<void>(outOfMemory()); // made while memory is left
  driver.start();
  wireUp.start();
}

EngineCore::~EngineCore() {
  endBy([this] { memory.recallAll(); });
  wireUp.stop();
  driver.stop();
  state.registrationThread.stop();
  state.gpuReclaimer.stop();
  endBy([this] { driver.drainGpus(); });
  endBy([this] {
    const EngineLock lock(state);
    for (const auto& group : state.groupRegistry.all()) {
      group->addresses().close();
    }
    state.retireFailed();
  });
  // Connections are closed before failAll() gives back memory that they may
  // touch.
  endBy([this] { state.closer.finish(); });
  endBy([this] {
    const EngineLock lock(state);
    state.channels.failAll(
        Status(ErrorCode::kCancelled, "this process's engine has stopped"));
  });
  endBy([this] { state.closer.finishAll(); });
}

} // namespace dlslime
