#pragma once

#include <memory>

namespace dlslime {

// Memory that somebody else may touch whenever he likes, for ever. It stays
// reachable, so that it is no leak to those who look for leaks. Any thread.
void leakOnPurpose(std::shared_ptr<void> keeper);

} // namespace dlslime
