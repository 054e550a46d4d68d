#include "engine/preparing.h"

#include <exception>

#include "core/log.h"
#include "engine/section.h"

namespace dlslime {

namespace {

struct Part {
  OperationPtr operation;
  MemoryView view;
  std::shared_ptr<const void> prepared;
};

std::vector<Part> begin(EngineState& state, const Unprepared& unprepared) {
  std::vector<Part> parts;
  const Section section(state);
  for (const auto& operation : unprepared.operations) {
    if (!operation->done()) {
      operation->keepMemory();
      parts.push_back({operation, operation->view(), nullptr});
    }
  }
  return parts;
}

} // namespace

void prepareAll(EngineState& state, const Unprepared& unprepared) {
  auto parts = begin(state, unprepared);
  for (auto& part : parts) {
    try {
      part.prepared = unprepared.registrar->prepare(part.view);
    } catch (const std::exception& error) {
      logDebug(error.what()); // it shows when the memory is used
    }
  }
  const Section section(state);
  for (auto& part : parts) {
    part.operation->preparedBy = unprepared.registrar;
    std::swap(part.operation->prepared, part.prepared);
    part.operation->letMemoryGo();
  }
}

} // namespace dlslime
