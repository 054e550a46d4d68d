#include "engine/bootstrap/unix_address.h"

#include <cstddef>
#include <cstring>

#include "base/status.h"

namespace dlslime {

UnixAddress::UnixAddress(const std::string& name) : UnixAddress(name, 1) {}

UnixAddress UnixAddress::ofPath(const std::string& path) {
  return {path, 0};
}

// A zero byte before the text makes a name abstract.
UnixAddress::UnixAddress(const std::string& text, size_t skipped) {
  name_.sun_family = AF_UNIX;
  if (text.size() + 1 > sizeof(name_.sun_path)) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the name of the peer's socket has " + std::to_string(text.size()) +
            " bytes: at most " + std::to_string(sizeof(name_.sun_path) - 1) +
            " are possible");
  }
  std::memcpy(name_.sun_path + skipped, text.data(), text.size());
  size_ =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

} // namespace dlslime
