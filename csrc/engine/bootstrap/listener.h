#pragma once

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/bootstrap/control_socket.h"

namespace dlslime {

// A socket that accepts control sockets. Never blocks.
class Listener {
 public:
  // On an abstract unix socket with a random name, for processes of this user
  // on this host: nothing in the file system, gone with the process. Others are
  // dropped, and `dropped` is told of them. Throws Error.
  using Dropped = std::function<void(const ControlSocket& socket)>;
  static Listener onThisHost(Dropped dropped = {});
  // On a TCP port that the kernel chooses, for those of other hosts, at the
  // addresses of the interfaces that `interfaces` selects (net_address.h).
  // Throws Error: there are none, ...
  // `setting`: the variable that says so, for texts.
  static Listener onTheNetwork(
      const std::string& interfaces,
      const std::string& setting = "");

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();
  // Where peers connect to: the name of a unix socket, or "10.9.0.1:4711", ...
  const std::vector<std::string>& names() const {
    return names_;
  }
  int fd() const {
    return fd_.get();
  }
  // Null: none waits; or the next ones were dropped, and others may wait; or
  // ...
  std::optional<ControlSocket> accept();
  // ... there was no free descriptor: all that wait still do.
  bool exhausted() const {
    return problem_ == EMFILE || problem_ == ENFILE;
  }
  // ... it could not be taken for another reason, and is asked again in vain
  // for a while.
  bool failing() const {
    return problem_ != 0;
  }
  // Then: one that waits, by a descriptor that is kept for this. It is to be
  // told so, and dropped before the next call. Null: nobody waits.
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
  uint32_t uid_; // of this process when it began to listen
  int problem_ = 0; // errno of the last accept()
};

} // namespace dlslime
