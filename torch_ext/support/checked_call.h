#pragma once

#include <c10/util/Exception.h>

#include "base/status.h"

namespace dlslime {

// Calls `body`. Errors of the engine become torch's: ValueError for refused
// arguments, else DistBackendError.
template <typename Body>
auto checkedCall(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    TORCH_CHECK_VALUE(
        error.status().code() != ErrorCode::kInvalidArgument,
        "dlslime: ",
        error.what());
    TORCH_CHECK_WITH(DistBackendError, false, "dlslime: ", error.what());
  }
}

} // namespace dlslime
