#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/unique_fd.h"

namespace dlslime {

// The unix socket between two processes: two handshake frames with
// descriptors, then silence, until its end tells that the peer has gone.
// Never blocks. Closed in forked children (fork_guard.h).
class ControlSocket {
 public:
  struct Frame {
    Bytes bytes;
    std::vector<UniqueFd> fds;
  };
  // Throws Error if nobody listens there.
  static ControlSocket connectTo(const std::string& abstractName);

  explicit ControlSocket(UniqueFd fd);
  ControlSocket(ControlSocket&&) = default;
  ControlSocket& operator=(ControlSocket&& other) noexcept;
  ~ControlSocket();

  int fd() const {
    return fd_.get();
  }
  // Throws Error if the frame can't be sent whole: both ends are fresh, so
  // their buffers have room.
  void sendFrame(ByteSpan bytes, const std::vector<UniqueFd>& fds);
  // A whole frame, or nothing yet. Throws Error if the socket has ended or
  // the peer sends what no frame may be.
  std::optional<Frame> receiveFrame();
  // "process 12 (uid 0)": who is at the other end, as the kernel knows it.
  struct Credentials {
    uint32_t pid, uid;
  };
  Credentials credentials() const;

 private:
  void receiveSome();

  UniqueFd fd_;
  Bytes received_;
  std::vector<UniqueFd> receivedFds_;
};

// Listens on an abstract unix socket with a random name: nothing in the file
// system, gone with the process.
class Listener {
 public:
  Listener(); // throws Error
  ~Listener();
  const std::string& name() const {
    return name_;
  }
  int fd() const {
    return fd_.get();
  }
  std::optional<ControlSocket> accept();

 private:
  std::string name_;
  UniqueFd fd_;
};

} // namespace dlslime
