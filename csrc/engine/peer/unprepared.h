#pragma once

#include <vector>

#include "interface/operation.h"
#include "interface/transport.h"

namespace dlslime {

// Messages of up to so many bytes are copied on every route, and so need no
// preparing.
constexpr size_t kLeastPrepared = 16 * 1024;

inline bool lacksPreparing(
    const Operation& operation,
    const MemoryRegistrar* registrar) {
  return registrar != nullptr && operation.preparedBy != registrar &&
      !operation.oneSided() && operation.size() > kLeastPrepared;
}

// Operations not prepared by `registrar`; collected under the engine's lock.
struct Unprepared {
  MemoryRegistrar* registrar = nullptr;
  std::vector<OperationPtr> operations;
};

} // namespace dlslime
