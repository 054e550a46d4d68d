#include "engine/state/preparing.h"

#include <exception>

#include "base/log.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {

struct Part {
  OperationPtr operation;
  MemoryView view;
  RegistrationPtr prepared;
};

std::vector<Part> begin(EngineState& state, const Unprepared& unprepared) {
  std::vector<Part> parts;
  const EngineLock lock(state);
  for (const auto& operation : unprepared.operations) {
    if (!operation->done() && operation->keepMemory()) {
      parts.push_back({operation, operation->view(), nullptr});
    }
  }
  return parts;
}

} // namespace

void prepareAll(EngineState& state, const Unprepared& unprepared) {
  for (auto& [operation, view, prepared] : begin(state, unprepared)) {
    try {
      prepared = unprepared.registrar->prepare(view);
    } catch (const std::exception& error) {
      logDebug(error.what()); // the failure shows when the memory is used
    }
    {
      const EngineLock lock(state);
      operation->preparedBy = unprepared.registrar;
      std::swap(operation->prepared, prepared);
    }
    prepared.reset(); // the former registration must not outlive the memory
    operation->letMemoryGo();
  }
}

} // namespace dlslime
