#pragma once

#include <string>

namespace dlslime {

// Route that comes before the chosen route, and why the route was not taken.
struct RejectedRoute {
  std::string route, reason;
  bool tried = false; // by this process; might work at a later time
};

} // namespace dlslime
