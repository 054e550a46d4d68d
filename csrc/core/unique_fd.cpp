#include "core/unique_fd.h"

#include <sys/eventfd.h>

#include <vector>

#include "core/status.h"

namespace dlslime {

std::string noDescriptorText() {
  return "there is no free descriptor: " + descriptorLimitText();
}

void requireDescriptors(size_t count) {
  std::vector<UniqueFd> tried;
  while (tried.size() < count) {
    tried.emplace_back(eventfd(0, EFD_CLOEXEC));
    if (!tried.back()) {
      throw Error(ErrorCode::kExhausted, noDescriptorText());
    }
  }
}

} // namespace dlslime
