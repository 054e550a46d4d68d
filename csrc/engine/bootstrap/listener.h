#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/bootstrap/control_socket.h"

namespace dlslime {

// Listening socket for control sockets. Never blocks.
class Listener {
 public:
  // Receives each connection of a foreign user before accept() drops the
  // connection.
  using Dropped = std::function<void(const ControlSocket& socket)>;
  static constexpr const char* kUsualPrefix = "dlslime-";
  // Listens on an abstract unix socket with a random name after `prefix`, for
  // processes of this user on this host: leaves nothing in the file system, and
  // is gone with the process. Throws Error.
  static Listener onThisHost(
      Dropped dropped = {},
      const std::string& prefix = kUsualPrefix);
  // Listens on the unix socket `name` in a directory, for processes of this
  // user in other containers of this host. The end of the listener removes the
  // socket. Throws Error.
  static Listener inDirectory(
      std::shared_ptr<const RendezvousDirectory> directory,
      const std::string& name,
      Dropped dropped);
  // Listens on a TCP port chosen by the kernel, for remote peers, at the
  // addresses of the interfaces selected by `interfaces` (net_address.h).
  // `setting` names the variable holding the selection, for texts. Throws
  // Error, for instance when no interface is selected.
  static Listener onTheNetwork(
      const std::string& interfaces,
      const std::string& setting = "");

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();
  // Returns the addresses for peers: the name of a unix socket, or
  // "10.9.0.1:4711", ...
  const std::vector<std::string>& names() const {
    return names_;
  }
  int fd() const {
    return fd_.get();
  }
  // Returns a waiting connection. Null: no connection waits, or 64 in a row
  // were dropped and more may wait, or accepting failed (see failing() and
  // exhausted()).
  std::optional<ControlSocket> accept();
  // Returns whether the last accept() found no free descriptor; all waiting
  // connections still wait.
  bool exhausted() const {
    return problem_ == EMFILE || problem_ == ENFILE;
  }
  // Returns whether the last accept() failed, so that a retry would fail as
  // well for a while.
  bool failing() const {
    return problem_ != 0;
  }
  // When exhausted(): accepts a waiting connection by means of a reserved
  // descriptor. The caller tells the peer of the shortage, and drops the socket
  // before the next call. Null: no connection waits.
  std::optional<ControlSocket> acceptToRefuse();

 private:
  Listener(UniqueFd fd, std::vector<std::string> names, bool network);
  bool meant(const ControlSocket& socket) const;
  void keepSpare();

  UniqueFd fd_;
  UniqueFd spare_;
  std::vector<std::string> names_;
  bool network_;
  Dropped dropped_;
  std::shared_ptr<const RendezvousDirectory> directory_; // of a socket in one
  uint32_t uid_; // effective user when the process began to listen
  int problem_ = 0; // errno of the last accept(); 0: no error
};

} // namespace dlslime
