#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log_once.h"
#include "engine/one_sided/region.h"

namespace dlslime {

struct EngineState;

// Registers memory with devices where no caller's thread can do it: a peer has
// asked for it, or a connection was replaced by one over other devices. A
// hundred gigabytes take many seconds, so this has a thread of its own, which
// is started when there is something to do for the first time.
class RegistrationThread {
 public:
  explicit RegistrationThread(EngineState& state) : state_(state) {}
  ~RegistrationThread() {
    stop();
  }
  void wake(); // under the engine's lock
  void stop(); // not under it; idempotent
  // Does what it has been woken for, where no thread could be started.
  void standIn();
  // Says that a registrar could not enroll it, each reason once. Any thread.
  void logRefused(const Region& region, const Error& error);

 private:
  void run();
  void serve();
  void registerRegion(
      const RegionTable::Wanted& wanted,
      std::shared_ptr<const void>& result,
      Status& status);
  void tell(
      const RegionTable::Wanted& wanted,
      const std::shared_ptr<const void>& result,
      const Status& status);

  EngineState& state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false; // guarded by mutex_, as the next one
  bool stopping_ = false;
  std::thread thread_;
  LogOnce said_;
};

} // namespace dlslime
