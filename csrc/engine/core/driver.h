#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/progress/copier.h"
#include "engine/progress/progress.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

// Drives the engine: looks for news of peers and GPUs, and chooses the thread
// for each copy between this process and peers. Any thread may call.
class Driver final : public ProgressSource {
 public:
  explicit Driver(EngineState& state);

  void start() {
    progress_.start();
  }
  // Stops the threads that drive the engine; idempotent.
  void stop();
  // Polls until all copies of GPUs, and so the operations that own the copies,
  // have ended: at the engine's end no thread looks any more.
  void drainGpus();
  // Decides which thread drives the engine, and when.
  Progress& progress() {
    return progress_;
  }

  // Looks for news of the operation's peer. True if there was any.
  bool lookFor(const Operation& operation, int most = kMessagesPerPoll)
      REQUIRES(kEngineLock);
  // Decides whether GPUs have to be looked at from time to time. `held`:
  // operations wait for streams.
  void watchGpus(bool held) REQUIRES(kEngineLock);

  // A peer can keep a copy from returning, so a thread of the program makes
  // only copies of the pair that it waits for; the Copier makes all further
  // copies.
  bool step(const Operation* awaited) override;
  TimePoint lookAgain() override {
    return copier_.lookAgain();
  }
  bool help() override;
  bool endsSoon() override;
  bool mustLook() override {
    return state_.watchesGpus.load(std::memory_order_seq_cst);
  }
  bool beginSleep() override;
  void endSleep() override;
  void onReady(const std::vector<uint64_t>& tokens) override;

 private:
  bool lookAtAll() REQUIRES(kEngineLock);
  bool lookWhileAwaiting(const Operation& operation) REQUIRES(kEngineLock);
  bool lookAtRest(bool any) REQUIRES(kEngineLock);
  bool lookAtGpus(Accelerator& gpus) REQUIRES(kEngineLock);
  PeerChannel* channelOf(const Operation& operation) REQUIRES(kEngineLock);
  // Leaves the lock of the caller, of which the analysis knows nothing inside.
  bool giveCopy(EngineLock& lock)
      REQUIRES(kEngineLock) NO_THREAD_SAFETY_ANALYSIS;
  void runCopies(CopyJob job, std::shared_ptr<PeerChannel> channel);
  std::optional<ClaimedCopy> finishCopy(const ClaimedCopy& made, bool more);

  EngineState& state_;
  Progress progress_;
  Copier copier_;
};

} // namespace dlslime
