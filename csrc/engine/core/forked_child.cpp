#include "engine/core/forked_child.h"

#include "base/fork_guard.h"
#include "base/status.h"

namespace dlslime {

void refuseInForkedChild() {
  if (inForkedChild()) {
    throw Error(
        ErrorCode::kUnusable,
        "this process was forked from one that uses dlslime: the connections "
        "belong to the parent. Start workers by spawn or forkserver, or call "
        "init_process_group only in the child");
  }
}

} // namespace dlslime
