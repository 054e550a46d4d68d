#pragma once

namespace dlslime {

// Throws Error{kUnusable} in a forked child.
void refuseInForkedChild();

} // namespace dlslime
