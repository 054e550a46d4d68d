#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "interface/memory.h"
#include "interface/side_socket.h"

namespace dlslime {

class RendezvousDirectory;

// Socket between two processes: a unix socket if both run on one host as one
// user, else TCP. Never blocks. First come the frames of a handshake, with
// descriptors between frames on a unix socket. Afterwards only doorbell bytes
// may follow, and the end of the stream tells that the peer has gone; over TCP,
// a host that vanishes without a word is noticed after 25 s. Forked children
// close the socket (fork_guard.h).
class ControlSocket {
 public:
  static constexpr size_t kMostFrameBytes = 64 * 1024;

  // Connects to an abstract unix socket. Throws Error: kPeerFailed when no
  // process listens, kExhausted when the listener's queue is full, kTimeout for
  // all further errors of connect().
  static ControlSocket connectTo(const std::string& abstractName);
  // Connects to a socket in the directory. Throws like connectTo(), and
  // kUnavailable when this process may not use the socket.
  static ControlSocket connectIn(
      const RendezvousDirectory& directory,
      const std::string& name);
  // Begins to connect to a TCP address such as "10.9.0.1:4711". Throws like
  // connectTo().
  static ControlSocket startConnecting(const std::string& address);
  // Completes startConnecting() once the socket is writable. Throws like
  // connectTo().
  void finishConnecting();

  explicit ControlSocket(UniqueFd fd);
  ControlSocket(ControlSocket&&) = default;
  ControlSocket& operator=(ControlSocket&& other) noexcept;
  ~ControlSocket();

  int fd() const {
    return fd_.get();
  }
  // Sends a frame. Throws Error unless the kernel takes the whole frame: both
  // ends are fresh, so the buffers have room.
  void sendFrame(ByteSpan bytes);
  // Returns a whole frame of at most `most` bytes, or nothing yet. Reads no
  // byte beyond the frame. Throws Error when the stream has ended, the frame is
  // too long, or descriptors come with the frame; the kernel drops the
  // descriptors.
  std::optional<Bytes> receiveFrame(size_t most = kMostFrameBytes);
  // Sends one or more descriptors over a unix socket, after a frame telling the
  // number. Throws like sendFrame().
  void sendDescriptors(const std::vector<UniqueFd>& fds);
  // Returns the `count` announced descriptors, or nothing yet. Throws Error:
  // kExhausted when this process has no free descriptor, else kPeerFailed when
  // the stream has ended or a different number came.
  std::optional<std::vector<UniqueFd>> receiveDescriptors(size_t count);
  // Returns whether the stream has ended, with no byte left to read.
  bool ended() const;
  // Hands the descriptor and the bytes received so far to the caller. Forked
  // children no longer close the descriptor.
  SideSocket release();
  // Returns whether the socket is a unix socket, so that the peer is on this
  // host.
  bool local() const;
  // Returns whether no byte of a frame has come yet.
  bool silent() const {
    return !heard_;
  }
  // The kernel's record of the process that called connect() or listen() at the
  // far end.
  struct Credentials {
    uint32_t pid = 0; // in our pid namespace; 0: outside of the namespace
    uint32_t uid = 0; // effective
  };
  Credentials credentials() const; // for unix sockets only
  // Returns the pid of the listening process. Throws Error unless the listener
  // is of user `own` or of the current effective user of the calling process.
  uint32_t requireUser(uint32_t own) const;
  // Returns "process 12 of uid 0", or over TCP "10.9.0.2:4711".
  std::string peerText() const;
  // Returns "uid 0", or over TCP "10.9.0.2": equal for all connections from a
  // user or host.
  std::string peerSource() const;
  // Returns "process 12 of uid 0", or over TCP "10.9.0.2": equal for all
  // connections from a process or host.
  std::string peerOrigin() const;

 private:
  bool receiveUpTo(size_t size);

  UniqueFd fd_;
  bool heard_ = false;
  Bytes received_; // the beginning of an incomplete frame
};

} // namespace dlslime
