#include "base/unique_fd.h"

#include <sys/eventfd.h>

#include <utility>
#include <vector>

#include "base/status.h"

namespace dlslime {

std::string noDescriptorText() {
  return "there is no free descriptor: " + descriptorLimitText();
}

void requireDescriptors(size_t count) {
  std::vector<UniqueFd> tried;
  while (tried.size() < count) {
    UniqueFd one(eventfd(0, EFD_CLOEXEC));
    if (!one) {
      throw Error(ErrorCode::kExhausted, noDescriptorText());
    }
    tried.push_back(std::move(one));
  }
}

} // namespace dlslime
