#pragma once

#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "engine/bootstrap/unix_address.h"

namespace dlslime {

// Directory mounted into several containers of one host, in which their
// processes meet by unix sockets: containers with separate network namespaces
// have no abstract sockets in common. Held open, so that a later mount over the
// path changes nothing. Any thread.
class RendezvousDirectory {
 public:
  // Returns null for an empty path. `setting` names the variable holding the
  // path, for texts. Throws Error{kInvalidArgument} if the directory can't be
  // opened.
  static std::shared_ptr<const RendezvousDirectory> open(
      const std::string& path,
      const std::string& setting);

  // Returns a text that is equal for two processes of a host if both have
  // opened the same directory, under whatever path.
  const std::string& id() const {
    return id_;
  }
  // Returns a text such as "DLSLIME_RENDEZVOUS_DIR=/pods".
  const std::string& setting() const {
    return setting_;
  }
  // Returns the address of a socket in the directory, short even if the path is
  // long: the kernel takes at most 107 bytes.
  UnixAddress address(const std::string& name) const;
  // Removes a socket of this process, if it is there.
  void remove(const std::string& name) const noexcept;
  // Removes the sockets of processes of this user that were killed.
  void removeStale() const;

 private:
  RendezvousDirectory(UniqueFd fd, std::string id, std::string setting)
      : fd_(std::move(fd)), id_(std::move(id)), setting_(std::move(setting)) {}
  bool isStale(const std::string& name) const;

  const UniqueFd fd_;
  const std::string id_, setting_;
};

} // namespace dlslime
