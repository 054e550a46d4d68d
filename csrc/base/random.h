#pragma once

#include <string>

#include "base/bytes.h"

namespace dlslime {

// From the kernel's generator; throws Error if there is none.
Bytes randomBytes(size_t size);
std::string hex(ByteSpan bytes);
// Same time for every input of one length: for tokens.
bool equalSecrets(ByteSpan left, ByteSpan right);

} // namespace dlslime
