#pragma once

#include <functional>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "interface/memory.h"

namespace dlslime {

// A socket of its own between the two ends of one connection, for what a
// transport has to agree on beyond its offers.
struct SideSocket {
  UniqueFd fd; // does not block
  Bytes early; // what has come on it already
};

// Blocks until both ends have asked, at most until the deadline, on any thread.
// Throws Error.
using OpenSideSocket = std::function<SideSocket(TimePoint deadline)>;

} // namespace dlslime
