#pragma once

#include <string>

#include "base/bytes.h"
#include "base/library/api.h"

namespace dlslime {

// Returns bytes from the kernel's random generator; throws Error if the
// generator fails.
DLSLIME_API Bytes randomBytes(size_t size);
DLSLIME_API std::string hex(ByteSpan bytes);
// Compares secrets in a time depending on the length only, so the time reveals
// nothing about a token.
bool equalSecrets(ByteSpan left, ByteSpan right);

} // namespace dlslime
