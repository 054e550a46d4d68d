#pragma once

#include "base/status.h"

namespace dlslime::testing {

// Returns the status thrown by the call; ok if nothing was thrown.
template <typename Body>
Status statusOf(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

inline bool mentions(const Status& status, const char* text) {
  return status.message().find(text) != std::string::npos;
}

} // namespace dlslime::testing
