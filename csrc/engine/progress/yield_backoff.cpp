#include "engine/progress/yield_backoff.h"

#include <sched.h>

namespace dlslime {

void YieldBackoff::yield(int64_t& displaced) {
  if (!adapts_) { // yields are cheap: measuring would cost more
    sched_yield();
    return;
  }
  // Use is judged by context switches and not by the yield's duration: packets
  // coming meanwhile take time, too.
  const auto before = displaced >= 0 ? displaced : timesDisplaced();
  sched_yield();
  displaced = timesDisplaced();
  note(before == 0 || displaced != before);
}

} // namespace dlslime
