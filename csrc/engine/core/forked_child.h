#pragma once

#include "base/library/api.h"

namespace dlslime {

// Throws Error{kUnusable} in a forked child.
DLSLIME_API void refuseInForkedChild();

} // namespace dlslime
