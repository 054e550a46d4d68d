#pragma once

#include <string>
#include <string_view>

namespace dlslime {

// Text of another process, fit for logs and exceptions: control characters
// and what is not UTF-8 become "\x1b", and what is beyond `most` bytes "...".
std::string printable(std::string_view text, size_t most = 1024);

} // namespace dlslime
