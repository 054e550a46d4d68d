#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/peer/peer_channel.h"
#include "engine/progress/epoll_waiter.h"

namespace dlslime {

// Which process, by which policy: groups with equal keys share a connection.
struct ChannelKey {
  Bytes instance;
  RoutePolicy policy = RoutePolicy::kAuto;
  auto operator<=>(const ChannelKey&) const = default;
};

// Every connection of this process. Under the engine's lock.
class ChannelTable {
 public:
  explicit ChannelTable(EpollWaiter& epoll) : epoll_(epoll) {}

  // The open channel with this key, or null.
  std::shared_ptr<PeerChannel> find(const ChannelKey& key) const;
  // What it takes to connect to the peer again.
  struct Contact {
    AddressRecord record;
    Bytes pairSecret; // drawn when the two connected first; empty: to oneself
  };
  // `socket` is empty for the channel to oneself.
  void add(
      const ChannelKey& key,
      Contact contact,
      std::shared_ptr<PeerChannel> channel,
      std::optional<ControlSocket> socket);
  // How many there are with what ControlSocket::peerOrigin() calls so.
  size_t countOf(const std::string& origin) const;
  // Empty: there is no such channel.
  Bytes pairSecretOf(const ChannelKey& key) const;
  void replaceSocket(const PeerChannel& channel, ControlSocket socket);
  void dropSocket(const PeerChannel& channel);

  bool poll(int most);
  // See Connection::endsSoon().
  bool endsSoon() const;
  // Copy work of one channel, or of any that has none which does not come back;
  // finish it on the channel that is returned.
  std::shared_ptr<PeerChannel> claimCopy(
      CopyJob& job,
      const PeerChannel* only = nullptr);
  // The channel by which this operation is being done now; or null.
  const PeerChannel* serving(const Operation& operation) const;
  // A control socket has something to say: almost always that it has ended.
  void onSocket(uint64_t token);
  // A connection that is over, and what goes after it, in this order: a peer
  // that sees the end of a socket may count on having everything.
  struct Retired {
    std::unique_ptr<Connection> connection;
    std::shared_ptr<PeerChannel> channel; // quieted() when that is gone
    std::optional<ControlSocket> socket; // most often gone before
  };
  // How many channels with this key have failed so far, and why the last one.
  struct Failures {
    uint32_t count = 0;
    Status last;
  };
  Failures failures(const ChannelKey& key) const;
  // Drops channels that have failed and are idle, and severed connections; the
  // caller closes what is added to `retired`, outside of the lock.
  void reap(std::vector<Retired>& retired);
  struct Member {
    ChannelKey key;
    Contact contact;
    std::shared_ptr<PeerChannel> channel;
  };
  std::vector<Member> those(
      const std::function<bool(const PeerChannel&)>& wanted) const;
  // Everything ends; may be called again.
  void failAll(const Status& why);
  // The next connection of those that have failed; none: all are taken.
  std::optional<Retired> takeFailed();

  size_t size() const {
    return entries_.size();
  }

 private:
  struct Entry {
    ChannelKey key;
    Contact contact;
    std::shared_ptr<PeerChannel> channel;
    std::optional<ControlSocket> socket;
    uint64_t token;
    std::string origin; // empty: it is the channel to oneself
  };
  const Entry* aliveWith(const ChannelKey& key) const;
  void dropSocket(Entry& entry);
  Entry& entryOf(const PeerChannel& channel);
  void noteFailure(const Entry& entry);
  bool isOver(Entry& entry, std::vector<Retired>& retired);

  EpollWaiter& epoll_;
  std::vector<Entry> entries_;
  std::map<ChannelKey, Failures> failures_;
  uint64_t nextToken_ = 1;
};

} // namespace dlslime
