#pragma once

#include <exception>
#include <new>
#include <utility>

#include "core/log.h"
#include "engine/completions.h"

namespace dlslime {

// A receive that has left the matcher: it ends even where there is no memory
// for what is to be done with it.
class EndsAnyway {
 public:
  EndsAnyway(Completions& completions, OperationPtr receive)
      : completions_(completions), receive_(std::move(receive)) {}
  ~EndsAnyway() {
    if (std::uncaught_exceptions() > before_ && receive_) {
      try {
        completions_.finish(
            receive_,
            Status(ErrorCode::kExhausted, "this process has no memory left"));
      } catch (const std::bad_alloc&) {
        logError("an operation is lost: this process has no memory left");
      }
    }
  }
  EndsAnyway(const EndsAnyway&) = delete;
  EndsAnyway& operator=(const EndsAnyway&) = delete;

 private:
  Completions& completions_;
  const OperationPtr receive_;
  const int before_ = std::uncaught_exceptions();
};

} // namespace dlslime
