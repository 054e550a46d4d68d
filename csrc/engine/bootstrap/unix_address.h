#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

namespace dlslime {

// Address of a unix socket: an abstract name, or a path. Both throw Error if
// the text is too long.
class UnixAddress {
 public:
  explicit UnixAddress(const std::string& name);
  static UnixAddress ofPath(const std::string& path);

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&name_);
  }
  socklen_t size() const {
    return size_;
  }

 private:
  UnixAddress(const std::string& text, size_t skipped);

  sockaddr_un name_{};
  socklen_t size_ = 0;
};

} // namespace dlslime
