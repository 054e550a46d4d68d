#include "engine/progress/yield_backoff.h"

#include <sched.h>

namespace dlslime {

void YieldBackoff::yield(int64_t& displaced) {
  if (between_ <= 1) { // not worth a question
    sched_yield();
    return;
  }
  // Not by the time it takes: packets that come meanwhile take theirs, too.
  const auto before = displaced >= 0 ? displaced : timesDisplaced();
  sched_yield();
  displaced = timesDisplaced();
  note(before == 0 || displaced != before);
}

} // namespace dlslime
