#pragma once

#include <memory>

#include "base/library/api.h"

namespace dlslime {

// Keeps an object alive for ever, because a stuck thread, a peer or a GPU may
// touch the object's memory at any time. The object stays reachable, so leak
// checkers do not report a leak. Any thread.
DLSLIME_API void leakOnPurpose(std::shared_ptr<void> keeper);

} // namespace dlslime
