#pragma once

#include "engine/connect/wireup.h"
#include "engine/core/driver.h"
#include "engine/core/group_life.h"
#include "engine/core/posting.h"
#include "engine/core/registered_memory.h"

namespace dlslime {

// What an Engine consists of.
struct EngineCore {
  explicit EngineCore(const Config& config);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  EngineState state;
  Driver driver{state};
  WireUp wireUp{state};
  Posting posting{state, driver, wireUp};
  RegisteredMemory memory{state, driver};
  GroupLife groups{state, driver, wireUp};
};

} // namespace dlslime
