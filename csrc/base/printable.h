#pragma once

#include <string>
#include <string_view>

#include "base/library/api.h"

namespace dlslime {

// Returns text of a peer in a form fit for logs and exceptions: control
// characters and bytes not in UTF-8 become escapes ("\x1b"), and text beyond
// `most` bytes becomes "...".
DLSLIME_API std::string printable(std::string_view text, size_t most = 1024);

} // namespace dlslime
