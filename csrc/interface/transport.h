#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "interface/connection.h"
#include "interface/side_socket.h"

namespace dlslime {

namespace gloo {
class CarrierSource;
}

// What one end of a new connection hands to the other through the control
// socket. Descriptors travel only where the socket is a unix one.
struct Offer {
  Bytes blob;
  std::vector<UniqueFd> fds;
};

// What a transport may know of the other process, from its address record.
struct PeerIdentity {
  Bytes instance; // 16 random bytes, one per engine
  std::string bootId;
  std::string host; // for texts only; never compared
  uint64_t networkNamespace = 0;
  uint32_t pid = 0; // in its own pid namespace: for texts only
  uint32_t uid = 0; // effective, in its own user namespace: for texts only
  // The effective user as the host knows it, or the namespace around the
  // container's.
  uint32_t hostUid = 0;
  // Of the rendezvous directory, equal for processes of a host that share the
  // directory; empty: the process has none.
  std::string directory;
};

// How a route's peers wake this process when it sleeps.
class WakeSource {
 public:
  // Descriptors that become readable when a sleeping process has something to
  // do; drainWakeFds() makes them quiet again.
  virtual std::vector<int> wakeFds() const {
    return {};
  }
  virtual void drainWakeFds() {}
  // Between these two calls peers must ring before they expect progress.
  virtual void beginSleep() {}
  virtual void endSleep() {}

 protected:
  ~WakeSource() = default;
};

// Events of a route's devices, on the thread that makes connections.
class DeviceWatch {
 public:
  struct News {
    bool down = false; // some connections are of no use, and will be broken
    bool up = false; // better connections may have become possible
  };
  // Become readable when there is news.
  virtual std::vector<int> deviceFds() const = 0;
  virtual News onDevices() = 0;

 protected:
  ~DeviceWatch() = default;
};

// Makes the connections of one route.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // For `doctor`: what the route works with here. Throws Error: the reason why
  // it does not work.
  virtual std::string describe() {
    return "works";
  }
  // Ok, or why this route can't join the two processes.
  virtual Status reaches(const PeerIdentity& self, const PeerIdentity& peer)
      const = 0;
  // Connecting takes three calls: the initiator offers, the other end accepts
  // (and gets its Connection), the initiator finishes with the answer. Each
  // may throw Error; `context` is of this connection.
  struct Context {
    std::shared_ptr<gloo::CarrierSource> carrierSource;
    std::string nonce; // the same at both ends, new for each connection
    bool initiator = false;
    PeerIdentity peer; // as it says itself: for texts alone
    // Of this host, as the kernel knows it; 0: not in this process's namespace.
    uint32_t peerPid = 0;
    OpenSideSocket sideSocket{}; // may be called after this object is gone
  };
  virtual Offer offer(const Context& context) = 0;
  virtual std::unique_ptr<Connection>
  accept(const Context& context, Offer offer, Offer& answer) = 0;
  virtual std::unique_ptr<Connection> finish(
      const Context& context,
      Offer answer) = 0;
  // The offer came to nothing.
  virtual void withdraw(const Context& /*context*/) {}

  // Null: nothing is to be done around sleeping.
  virtual WakeSource* wakeSource() {
    return nullptr;
  }
  // Null: the route has no devices that tell of themselves.
  virtual DeviceWatch* deviceWatch() {
    return nullptr;
  }
};

} // namespace dlslime
