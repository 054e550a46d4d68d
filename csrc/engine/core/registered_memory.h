#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/driver.h"

namespace dlslime {

// The regions of this process, from registerMemory() to deregister(), and their
// return by peers. Any thread may call; the functions are explained at Engine.
class RegisteredMemory {
 public:
  RegisteredMemory(EngineState& state, Driver& driver)
      : state_(state), driver_(driver) {}

  RegionPtr registerMemory(
      MemoryView view,
      std::string name,
      std::shared_ptr<void> keeper);
  void deregister(const RegionPtr& region, TimePoint deadline);
  // Recalls all lent regions before the memory of this process goes. A peer
  // that does not answer may still be copying, so memory lent to such a peer is
  // never freed.
  void recallAll();

 private:
  void recall(Region& region) REQUIRES(kEngineLock);
  void beginDeregister(Region& region) REQUIRES(kEngineLock);
  std::vector<std::string> borrowersOf(const Region& region)
      REQUIRES(kEngineLock);
  void requireGivenBack(Region& region) REQUIRES(kEngineLock);

  EngineState& state_;
  Driver& driver_;
};

} // namespace dlslime
