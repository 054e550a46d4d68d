#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/status.h"

namespace dlslime {

Bytes randomBytes(size_t size) {
  Bytes bytes(size);
  size_t filled = 0;
  while (filled < size) {
    const auto got = getrandom(bytes.data() + filled, size - filled, 0);
    if (got < 0 && errno != EINTR) {
      throwErrno("cannot read random bytes", errno);
    }
    filled += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return bytes;
}

std::string hex(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const auto byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

bool equalSecrets(ByteSpan left, ByteSpan right) {
  if (left.size() != right.size()) {
    return false;
  }
  unsigned difference = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    difference |= static_cast<unsigned>(left[i] ^ right[i]);
  }
  return difference == 0;
}

} // namespace dlslime
