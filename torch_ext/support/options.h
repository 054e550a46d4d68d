#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/config.h"

namespace dlslime {

constexpr const char* kBackendName = "dlslime";

// Options of a group, passed as pg_options. Empty strings mean the process's
// DLSLIME_ROUTE and DLSLIME_FALLBACK.
struct BackendOptions : c10d::Backend::Options {
  explicit BackendOptions(
      std::chrono::milliseconds groupTimeout = kBackendDefaultTimeout)
      : Options(kBackendName, groupTimeout) {}

  std::string route;
  std::string fallback;
};

} // namespace dlslime
