#pragma once

#include <deque>
#include <memory>
#include <string>

#include "base/threads/mutex.h"
#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/wire_records.h"
#include "interface/side_socket.h"

namespace dlslime {

// Route named in the Hello of a future side socket.
inline constexpr const char* kSideRoute = "side socket";

// Side sockets opened by peers to this process: the wire-up thread brings a
// socket, and a waiting thread takes the socket. Any thread may call any
// method.
class SideSockets {
 public:
  // Expects a socket with the nonce. When too many are expected, forgets the
  // oldest without a waiting thread.
  void expect(const std::string& nonce);
  // Returns false unless a socket with the nonce is expected and has not come
  // yet.
  bool bring(const std::string& nonce, SideSocket socket);
  // Blocks until the socket has come. Throws Error at the deadline, and after
  // forget() or close().
  SideSocket take(const std::string& nonce, TimePoint deadline);
  // Expects the socket no longer; a thread waiting for the socket gives up.
  void forget(const std::string& nonce);
  // Makes all threads in take() give up, now and later.
  void close();

 private:
  struct Expected {
    std::string nonce;
    SideSocket socket; // empty until brought
    bool awaited = false; // by a thread in take()
  };
  using Place = std::deque<Expected>::iterator;
  Place find(const std::string& nonce) REQUIRES(mutex_);
  // True while the socket may still be brought.
  bool mayCome(const std::string& nonce) REQUIRES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::deque<Expected> expected_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

// Connects to the peer's unix socket, where meetLocally() holds; the caller
// checks the user at the far end. Throws like ControlSocket::connectTo().
ControlSocket connectOnThisHost(
    const PeerIdentity& self,
    const RendezvousDirectory* directory,
    const AddressRecord& peer);

// Address of the process to open a side socket to, and the records to send.
struct SideSocketWay {
  AddressRecord record;
  PeerIdentity self;
  std::shared_ptr<const RendezvousDirectory> directory;
  Greeting greeting; // without the nonce
  Bytes secret;
  Bytes hello; // encoded
};
// Opens a side socket. Blocks until the deadline at most. Throws Error;
// kExhausted: a later attempt may find room.
SideSocket openSideSocket(const SideSocketWay& way, TimePoint deadline);

} // namespace dlslime
