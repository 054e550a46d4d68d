#pragma once

#include <thread>

#include "base/log_once.h"
#include "base/threads/mutex.h"
#include "engine/one_sided/region.h"

namespace dlslime {

struct EngineState;

// Registers memory with devices where no caller's thread can: a peer has asked
// for the memory, or a connection was replaced by a connection over different
// devices. Registering a hundred gigabytes takes many seconds, so a separate
// thread does the work, started at the first need.
class RegistrationThread {
 public:
  explicit RegistrationThread(EngineState& state) : state_(state) {}
  ~RegistrationThread() {
    stop();
  }
  void wake(); // under the engine's lock
  void stop(); // not under the engine's lock; idempotent
  // Does the work on the calling thread if the separate thread could not be
  // started; called by the wire-up thread.
  void standIn();
  // Logs that a region can't be registered, each reason once. Any thread.
  void logRefused(const Region& region, const Error& error);

 private:
  void run();
  void serve();
  void registerRegion(
      const RegionTable::Wanted& wanted,
      RegistrationPtr& result,
      Status& status);
  void tell(
      const RegionTable::Wanted& wanted,
      const RegistrationPtr& result,
      const Status& status);

  EngineState& state_;
  Mutex mutex_;
  Condition changed_;
  bool wanted_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);
  LogOnce said_;
};

} // namespace dlslime
