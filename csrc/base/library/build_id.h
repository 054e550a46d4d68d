#pragma once

#include <string_view>

#include "base/library/api.h"

namespace dlslime {

// Returns the version and a hash of the engine's sources: "0.1.0-3f9a2c01b7de".
// Libraries that were built together have equal ids.
DLSLIME_API std::string_view buildId();

} // namespace dlslime
