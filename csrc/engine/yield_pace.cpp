#include "engine/yield_pace.h"

#include <sched.h>

namespace dlslime {

void YieldPace::yield() {
  if (between_ <= 1) { // not worth a question
    sched_yield();
    return;
  }
  // Not by the time it takes: packets that come meanwhile take theirs, too.
  const auto before = timesDisplaced();
  sched_yield();
  note(before == 0 || timesDisplaced() != before);
}

} // namespace dlslime
