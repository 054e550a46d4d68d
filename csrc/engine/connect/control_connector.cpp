#include "engine/connect/control_connector.h"

#include <algorithm>
#include <utility>

#include "engine/bootstrap/side_sockets.h"

namespace dlslime {

namespace {
constexpr const char* kRemedy =
    "; let TCP connections to the ports of net.ipv4.ip_local_port_range "
    "through firewalls, or choose an interface on the peer's host with "
    "DLSLIME_SOCKET_IFNAME";
} // namespace

ControlConnector::ControlConnector(
    const PeerIdentity& self,
    const RendezvousDirectory* directory,
    const AddressRecord& peer)
    : self_(self),
      directory_(directory),
      peer_(peer),
      local_(meetLocally(self, peer.identity)) {}

void ControlConnector::requireAddress() const {
  if (local_ || !peer_.addresses.empty()) {
    return;
  }
  const auto& peer = peer_.identity;
  if (self_.bootId != peer.bootId) {
    throw Error(
        ErrorCode::kUnavailable,
        "it is on another host (" + peer.host +
            ") and has no network address there: its log says why "
            "(DLSLIME_SOCKET_IFNAME)");
  }
  if (self_.hostUid != peer.hostUid) {
    throw Error(
        ErrorCode::kUnavailable,
        "it is of another user (uid " + std::to_string(peer.hostUid) +
            ", this process of uid " + std::to_string(self_.hostUid) +
            "), so that both can connect only over the network, and it has "
            "no network address (DLSLIME_SOCKET_IFNAME)");
  }
  throw Error(
      ErrorCode::kUnavailable,
      "it is on this host, in another network namespace (a container), and "
      "has no network address: mount one directory into both containers and "
      "set DLSLIME_RENDEZVOUS_DIR to it, or see DLSLIME_SOCKET_IFNAME");
}

void ControlConnector::start() {
  if (!local_) {
    connectByNetwork();
    return;
  }
  try {
    socket_ = connectOnThisHost(self_, directory_, peer_);
  } catch (const Error& error) {
    gone_ = error.status().code() == ErrorCode::kPeerFailed;
    throw;
  }
  peerPid_ = socket_->requireUser(self_.uid);
}

void ControlConnector::connectByNetwork() {
  while (address_ < peer_.addresses.size()) {
    connecting_ = true;
    try {
      socket_ = ControlSocket::startConnecting(peer_.addresses[address_]);
      return;
    } catch (const Error& error) {
      if (error.status().code() == ErrorCode::kExhausted) {
        throw; // a shortage of this process says nothing about the address
      }
      leave(error.status());
    }
  }
  gone_ = refused_;
  throw Error(
      outcome_,
      "no process answers at " + unreachable_ + (astray_ ? kRemedy : ""));
}

std::string ControlConnector::progress() const {
  if (local_ || address_ >= peer_.addresses.size()) {
    return "its process has not answered yet";
  }
  return "no process has answered yet at " + unreachable_ +
      (unreachable_.empty() ? "" : "; ") + peer_.addresses[address_] +
      (astray_ ? kRemedy : "");
}

void ControlConnector::leave(const Status& problem) {
  unreachable_ += (unreachable_.empty() ? "" : "; ") +
      peer_.addresses.at(address_++) + " (" + problem.message() + ")";
  const bool refused = connecting_ && problem.code() == ErrorCode::kPeerFailed;
  refused_ &= refused;
  if (problem.code() == ErrorCode::kTransportFailed ||
      problem.code() == ErrorCode::kExhausted) { // the peer has answered
    outcome_ =
        outcome_ == ErrorCode::kTransportFailed ? outcome_ : problem.code();
  } else {
    astray_ |= !refused;
  }
}

bool ControlConnector::onWritable() {
  try {
    socket_->finishConnecting();
  } catch (const Error& error) {
    tryNext(error.status());
    return false;
  }
  connecting_ = false;
  return true;
}

bool ControlConnector::mayTryNext() const {
  return socket_ && !local_ && address_ < peer_.addresses.size();
}

void ControlConnector::tryNext(const Status& problem) {
  leave(problem);
  connectByNetwork();
}

AddressRecord ControlConnector::recordAsReached() const {
  auto record = peer_;
  if (address_ < record.addresses.size()) {
    const auto reached =
        record.addresses.begin() + static_cast<ptrdiff_t>(address_);
    std::rotate(record.addresses.begin(), reached, record.addresses.end());
  }
  return record;
}

void ControlConnector::addTo(std::vector<pollfd>& fds) const {
  if (socket_) {
    const short wanted = connecting_ ? POLLOUT : POLLIN;
    fds.push_back({socket_->fd(), wanted, 0});
  }
}

ControlSocket ControlConnector::take() {
  ControlSocket socket = std::move(*socket_);
  socket_.reset();
  return socket;
}

} // namespace dlslime
