#pragma once

#include <functional>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "interface/memory.h"

namespace dlslime {

// Second socket between both ends of a connection, for what a transport has to
// agree on beyond the offers.
struct SideSocket {
  UniqueFd fd; // non-blocking
  Bytes early; // bytes already received
};

// Opens the side socket; blocks until both ends have asked, at most until the
// deadline. Any thread. Throws Error.
using OpenSideSocket = std::function<SideSocket(TimePoint deadline)>;

} // namespace dlslime
