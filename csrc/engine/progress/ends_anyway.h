#pragma once

#include <exception>
#include <utility>

#include "base/status.h"
#include "engine/progress/completions.h"

namespace dlslime {

// Guard of an operation already taken out of a table: if an exception (for want
// of memory) leaves the scope, the operation ends with outOfMemory(). The
// operation may be null.
class EndsAnyway {
 public:
  EndsAnyway(Completions& completions, OperationPtr operation)
      : completions_(completions), operation_(std::move(operation)) {}
  ~EndsAnyway() {
    if (std::uncaught_exceptions() > before_ && operation_) {
      completions_.finish(operation_, outOfMemory());
    }
  }
  EndsAnyway(const EndsAnyway&) = delete;
  EndsAnyway& operator=(const EndsAnyway&) = delete;

 private:
  Completions& completions_;
  const OperationPtr operation_;
  const int before_ = std::uncaught_exceptions();
};

} // namespace dlslime
