#pragma once

#include <exception>
#include <utility>

#include "base/status.h"
#include "engine/progress/completions.h"

namespace dlslime {

// An operation that has left the table it was in: it ends even where there is
// no memory for what is to be done with it. May be null.
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
