#pragma once

#include <poll.h>

#include <optional>
#include <string>

#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/wire_records.h"

namespace dlslime {

// Connects a control socket to a peer's process: to the unix socket if both
// processes meet on this host, else to the peer's network addresses one after
// the other. Wire-up thread only.
class ControlConnector {
 public:
  // Time for each address: packets dropped by a firewall cause no error.
  static constexpr milliseconds kConnectTime{5000};

  // Refers to all three; `directory` may be null.
  ControlConnector(
      const PeerIdentity& self,
      const RendezvousDirectory* directory,
      const AddressRecord& peer);

  // Throws Error{kUnavailable} when the peer has no usable address: no later
  // try would find an address.
  void requireAddress() const;
  // Connects anew. Over the network, connecting() then holds until
  // onWritable(). Throws Error when no address is left, naming all tried.
  void start();
  // Completes a connection, and returns true; or starts connecting to the next
  // address. Throws Error when no address is left.
  bool onWritable();
  // Whether a network address has been connected to, so that the next may be
  // tried: hosts of separate networks may have equal addresses, so a wrong
  // process may have answered.
  bool mayTryNext() const;
  // Starts connecting to the next address because of `problem` with this one.
  // Throws Error when no address is left.
  void tryNext(const Status& problem);

  // Returns what has come of the addresses so far.
  std::string progress() const;
  bool connecting() const {
    return connecting_;
  }
  // Returns whether no address has a listener: the process has ended.
  bool gone() const {
    return gone_;
  }
  // Returns the peer's pid, for the kernel's records; 0 over the network.
  uint32_t peerPid() const {
    return peerPid_;
  }
  // Returns the peer's record with the connected address first.
  AddressRecord recordAsReached() const;
  // Empty before start(), and after close() and take().
  std::optional<ControlSocket>& socket() {
    return socket_;
  }
  const std::optional<ControlSocket>& socket() const {
    return socket_;
  }
  void addTo(std::vector<pollfd>& fds) const;
  void close() {
    socket_.reset();
  }
  ControlSocket take();

 private:
  void connectByNetwork();
  void leave(const Status& problem);

  const PeerIdentity& self_;
  const RendezvousDirectory* const directory_;
  const AddressRecord& peer_;
  const bool local_;
  std::optional<ControlSocket> socket_;
  uint32_t peerPid_ = 0;
  size_t address_ = 0; // index of the address in use, or of the next
  std::string unreachable_; // earlier addresses, and why
  bool connecting_ = false;
  bool refused_ = true; // all earlier addresses are without a listener
  bool gone_ = false;
  // One of them led nowhere, or to a wrong process.
  bool astray_ = false;
  // Code of the final error: kTransportFailed if the peer refused a replacement
  // at one of them, else kExhausted if the peer had no room.
  ErrorCode outcome_ = ErrorCode::kPeerFailed;
};

} // namespace dlslime
