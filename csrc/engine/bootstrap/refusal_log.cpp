#include "engine/bootstrap/refusal_log.h"

#include <utility>

#include "base/log.h"
#include "base/log_once.h"

namespace dlslime {

RefusalLog::~RefusalLog() {
  sayCount();
}

void RefusalLog::note(
    const std::string& source,
    const std::string& text,
    const std::string& cause,
    TimePoint now) {
  if (told_.size() < kMostLines &&
      told_.emplace(source, LogOnce::withoutNumbers(cause)).second) {
    logWarning("a connection from " + text + " was refused: " + cause);
    return;
  }
  if (untold_++ == 0) {
    next_ = now + kPause;
  }
  last_ = text + ": " + cause;
}

void RefusalLog::tell(TimePoint now) {
  if (untold_ > 0 && now >= next_) {
    sayCount();
  }
}

void RefusalLog::sayCount() {
  if (untold_ > 0) {
    logWarning(
        "further connections were refused, without lines of their own: " +
        std::to_string(std::exchange(untold_, 0)) + ", the last from " + last_);
  }
}

} // namespace dlslime
