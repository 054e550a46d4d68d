#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "interface/memory.h"
#include "interface/side_socket.h"

namespace dlslime {

// The name of an abstract unix socket.
class UnixAddress {
 public:
  explicit UnixAddress(const std::string& name); // throws Error: too long

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&name_);
  }
  socklen_t size() const {
    return size_;
  }

 private:
  sockaddr_un name_{};
  socklen_t size_ = 0;
};

// The socket between two processes, a unix one on one host, else TCP: the
// frames of a handshake, with descriptors between them on a unix one, then
// silence, until its end tells that the peer has gone; over TCP a host that is
// gone without a word is noticed after half a minute. Never blocks. Closed in
// forked children (fork_guard.h).
class ControlSocket {
 public:
  static constexpr size_t kMostFrameBytes = 64 * 1024;

  // Throws Error: kPeerFailed if nobody listens there, kExhausted if it has no
  // room for us now, else kTimeout: there is no way to it, ...
  static ControlSocket connectTo(const std::string& abstractName);
  // Begins to connect to "10.9.0.1:4711". Throws the same.
  static ControlSocket startConnecting(const std::string& address);
  // Once the socket is writable: throws the same.
  void finishConnecting();

  explicit ControlSocket(UniqueFd fd);
  ControlSocket(ControlSocket&&) = default;
  ControlSocket& operator=(ControlSocket&& other) noexcept;
  ~ControlSocket();

  int fd() const {
    return fd_.get();
  }
  // Throws Error if the frame can't be sent whole: both ends are fresh, so
  // their buffers have room.
  void sendFrame(ByteSpan bytes);
  // A whole frame of at most so many bytes, or nothing yet; descriptors beside
  // it never reach this process. Reads no byte beyond it. Throws Error if the
  // socket has ended or the peer sends what no frame may be.
  std::optional<Bytes> receiveFrame(size_t most = kMostFrameBytes);
  // Between processes of this host, after a frame that told their number: 1 or
  // more. The same errors.
  void sendDescriptors(const std::vector<UniqueFd>& fds);
  std::optional<std::vector<UniqueFd>> receiveDescriptors(size_t count);
  // Nothing is to be read but the end.
  bool ended() const;
  // It is the caller's alone from now on.
  SideSocket release();
  // The other end is on this host.
  bool local() const;
  // Nothing has come yet.
  bool silent() const {
    return !heard_;
  }
  // The process at the other end, as the kernel knows it: the one that called
  // connect(), or listen().
  struct Credentials {
    uint32_t pid = 0; // in our namespace of pids; 0: it is not in there
    uint32_t uid = 0; // effective
  };
  Credentials credentials() const; // of a unix socket
  // The pid of what listens there. Throws Error: it is neither of this user nor
  // of the one that this process runs as now.
  uint32_t requireUser(uint32_t own) const;
  // "process 12 of uid 0", or "10.9.0.2:4711".
  std::string peerText() const;
  // "uid 0", or "10.9.0.2": the same for all connections of one origin.
  std::string peerSource() const;
  // The one process of this host, or "10.9.0.2" of another.
  std::string peerOrigin() const;

 private:
  bool receiveUpTo(size_t size);

  UniqueFd fd_;
  bool heard_ = false;
  Bytes received_; // of the frame that has begun
};

} // namespace dlslime
