#include "base/leak_on_purpose.h"

#include <mutex>
#include <utility>
#include <vector>

namespace dlslime {

void leakOnPurpose(std::shared_ptr<void> keeper) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard<std::mutex> guard(mutex);
  kept.push_back(std::move(keeper));
}

} // namespace dlslime
