#include "base/leak_on_purpose.h"

#include <utility>
#include <vector>

#include "base/threads/mutex.h"

namespace dlslime {

void leakOnPurpose(std::shared_ptr<void> keeper) {
  struct Kept {
    Mutex mutex;
    std::vector<std::shared_ptr<void>> all GUARDED_BY(mutex);
  };
  static auto& kept = *new Kept;
  const MutexLock lock(kept.mutex);
  kept.all.push_back(std::move(keeper));
}

} // namespace dlslime
