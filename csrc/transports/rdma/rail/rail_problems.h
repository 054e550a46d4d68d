#pragma once

#include <string>

#include "base/log.h"
#include "base/log_once.h"
#include "base/status.h"

namespace dlslime::rdma {

// Collects the failures of some of several rails, so that the remaining rails
// are used without them.
class RailProblems {
 public:
  // Calls `attempt`. Returns false if Error was thrown, and collects the text.
  template <typename Attempt>
  bool none(const Attempt& attempt) {
    try {
      attempt();
      return true;
    } catch (const Error& error) {
      text_ += (text_.empty() ? "" : "; ") + std::string(error.what());
      return false;
    }
  }
  // Throws Error{kUnavailable} with all texts if no rail is left. Else warns,
  // and only once, because every later attempt at a better connection meets the
  // problem again.
  void settle(bool anyLeft) const {
    if (text_.empty()) {
      return;
    }
    if (!anyLeft) {
      throw Error(ErrorCode::kUnavailable, text_);
    }
    // Never freed, because threads may outlast main().
    static auto* const said = new LogOnce;
    if (said->isNew(text_)) {
      logWarning(text_ + "; RDMA goes over other queue pairs");
    }
  }

 private:
  std::string text_;
};

} // namespace dlslime::rdma
