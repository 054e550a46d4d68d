#pragma once

#include <string>

#include "base/log.h"
#include "base/log_once.h"
#include "base/status.h"

namespace dlslime::rdma {

// What goes wrong with some of several rails: the others are used without them.
class RailProblems {
 public:
  // Calls it; false if it throws Error.
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
  // Throws Error{kUnavailable} with all of it if no rail is left; else it is a
  // warning, once: every try for a better connection meets it again.
  void settle(bool anyLeft) const {
    if (text_.empty()) {
      return;
    }
    if (!anyLeft) {
      throw Error(ErrorCode::kUnavailable, text_);
    }
    static auto* const said = new LogOnce; // for threads that outlast main()
    if (said->isNew(text_)) {
      logWarning(text_ + "; RDMA goes by other queue pairs");
    }
  }

 private:
  std::string text_;
};

} // namespace dlslime::rdma
