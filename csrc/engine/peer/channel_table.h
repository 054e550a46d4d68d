#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/memory/passed_descriptors.h"
#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/channel/peer_channel.h"
#include "engine/peer/look_order.h"
#include "engine/progress/engine_mutex.h"
#include "engine/progress/epoll_waiter.h"

namespace dlslime {

// Identifies a peer process and a route policy. Groups with equal keys share a
// channel.
struct ChannelKey {
  Bytes instance;
  RoutePolicy policy = RoutePolicy::kAuto;
  auto operator<=>(const ChannelKey&) const = default;
};

// All channels of this process. Under the engine's lock.
class ChannelTable {
 public:
  explicit ChannelTable(EpollWaiter& epoll) : epoll_(epoll) {}

  // Returns the channel with the key that is open or severed; null if none is.
  std::shared_ptr<PeerChannel> find(const ChannelKey& key) const
      REQUIRES(kEngineLock);
  // Data for connecting to the peer again.
  struct Contact {
    AddressRecord record;
    // Made by the first handshake of the pair; empty for the channel to
    // oneself.
    Bytes pairSecret;
  };
  // `socket` is empty for the channel to oneself.
  void add(
      const ChannelKey& key,
      Contact contact,
      std::shared_ptr<PeerChannel> channel,
      std::optional<ControlSocket> socket) REQUIRES(kEngineLock);
  // Returns the number of channels whose ControlSocket::peerOrigin() equals
  // `origin`.
  size_t countOf(const std::string& origin) const REQUIRES(kEngineLock);
  // Returns the secret of the open or severed channel with the key; empty if
  // none is open or severed.
  Bytes pairSecretOf(const ChannelKey& key) const REQUIRES(kEngineLock);
  void replaceSocket(const PeerChannel& channel, ControlSocket socket)
      REQUIRES(kEngineLock);
  void dropSocket(const PeerChannel& channel) REQUIRES(kEngineLock);

  LookOrder& looks() REQUIRES(kEngineLock) {
    return looks_;
  }
  // True if Connection::endsSoon() is true for any channel.
  bool endsSoon() const REQUIRES(kEngineLock);
  // Claims a copy of any channel without an overdue copy. Returns the channel
  // on which the caller has to finish the copy; null if no copy is to be made.
  std::shared_ptr<PeerChannel> claimCopy(CopyJob& job) const
      REQUIRES(kEngineLock);
  // Returns the channel now serving the operation, or null.
  PeerChannel* serving(const Operation& operation) const REQUIRES(kEngineLock);
  // Handles a readable control socket: the peer has rung, or the socket has
  // ended.
  void onSocket(uint64_t token) REQUIRES(kEngineLock);
  // Connection to be closed, with channel and socket. The socket must not end
  // before Connection::close() is over: a peer that sees the end relies on
  // having received everything.
  struct Retired {
    std::unique_ptr<Connection> connection;
    std::shared_ptr<PeerChannel> channel; // to call quieted() on at the end
    std::optional<ControlSocket> socket; // most often closed before
  };
  // Number of channels with a key that have failed so far, and the last
  // failure.
  struct Failures {
    uint32_t count = 0;
    Status last;
  };
  Failures failures(const ChannelKey& key) const REQUIRES(kEngineLock);
  // True if a channel of which a look has seen the end awaits reap().
  bool someOver() const REQUIRES(kEngineLock);
  // Drops failed channels that are idle, and severed connections. The caller
  // closes the connections added to `retired`, outside of the lock.
  void reap(std::vector<Retired>& retired) REQUIRES(kEngineLock);
  struct Member {
    ChannelKey key;
    Contact contact;
    std::shared_ptr<PeerChannel> channel;
  };
  std::vector<Member> those(
      const std::function<bool(const PeerChannel&)>& wanted) const
      REQUIRES(kEngineLock);
  // Fails all channels; may be called again.
  void failAll(const Status& why) REQUIRES(kEngineLock);
  // Takes the next connection of the channels, which have all failed; nothing
  // if all are taken.
  std::optional<Retired> takeFailed() REQUIRES(kEngineLock);

  size_t size() const REQUIRES(kEngineLock) {
    return entries_.size();
  }

 private:
  struct Entry {
    ChannelKey key;
    Contact contact;
    std::shared_ptr<PeerChannel> channel;
    std::optional<ControlSocket> socket;
    uint64_t token;
    std::string origin; // empty for the channel to oneself
    PassedDescriptors passed{}; // by the socket
  };
  const Entry* aliveWith(const ChannelKey& key) const REQUIRES(kEngineLock);
  void dropSocket(Entry& entry) REQUIRES(kEngineLock);
  Entry& entryOf(const PeerChannel& channel) REQUIRES(kEngineLock);
  void noteFailure(const Entry& entry) REQUIRES(kEngineLock);
  bool isOver(Entry& entry, std::vector<Retired>& retired)
      REQUIRES(kEngineLock);

  EpollWaiter& epoll_;
  std::vector<Entry> entries_;
  LookOrder looks_;
  std::map<ChannelKey, Failures> failures_;
  uint64_t nextToken_ = 1;
};

} // namespace dlslime
