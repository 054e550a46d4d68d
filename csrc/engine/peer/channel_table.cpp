#include "engine/peer/channel_table.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace dlslime {

namespace {
// Most keys with failures; keys of processes that have ended would pile up.
constexpr size_t kMostFailures = 1024;
} // namespace

const ChannelTable::Entry* ChannelTable::aliveWith(
    const ChannelKey& key) const {
  for (const auto& entry : entries_) {
    if (entry.channel->alive() && entry.key == key) {
      return &entry;
    }
  }
  return nullptr;
}

std::shared_ptr<PeerChannel> ChannelTable::find(const ChannelKey& key) const {
  const auto* const found = aliveWith(key);
  return found != nullptr ? found->channel : nullptr;
}

Bytes ChannelTable::pairSecretOf(const ChannelKey& key) const {
  const auto* const found = aliveWith(key);
  return found != nullptr ? found->contact.pairSecret : Bytes();
}

void ChannelTable::add(
    const ChannelKey& key,
    Contact contact,
    std::shared_ptr<PeerChannel> channel,
    std::optional<ControlSocket> socket) {
  const auto token = nextToken_++;
  if (socket) {
    epoll_.add(socket->fd(), token);
    channel->connection().useSocket(socket->fd());
  }
  auto origin = socket ? socket->peerOrigin() : "";
  Entry entry{
      key,
      std::move(contact),
      std::move(channel),
      std::move(socket),
      token,
      std::move(origin)};
  // The last step can't fail: looks_ must have no channel that is not kept.
  entries_.reserve(entries_.size() + 1);
  looks_.add(*entry.channel);
  entries_.push_back(std::move(entry));
}

size_t ChannelTable::countOf(const std::string& origin) const {
  const auto count =
      std::count_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.origin == origin;
      });
  return static_cast<size_t>(count);
}

ChannelTable::Entry& ChannelTable::entryOf(const PeerChannel& channel) {
  return *std::find_if(
      entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.channel.get() == &channel;
      });
}

void ChannelTable::replaceSocket(
    const PeerChannel& channel,
    ControlSocket socket) {
  auto& entry = entryOf(channel);
  dropSocket(entry);
  entry.token = nextToken_++;
  epoll_.add(socket.fd(), entry.token);
  entry.channel->connection().useSocket(socket.fd());
  entry.socket.emplace(std::move(socket));
}

void ChannelTable::dropSocket(const PeerChannel& channel) {
  dropSocket(entryOf(channel));
}

std::vector<ChannelTable::Member> ChannelTable::those(
    const std::function<bool(const PeerChannel&)>& wanted) const {
  std::vector<Member> found;
  for (const auto& entry : entries_) {
    if (wanted(*entry.channel)) {
      found.push_back({entry.key, entry.contact, entry.channel});
    }
  }
  return found;
}

bool ChannelTable::endsSoon() const {
  return looks_.firstBusy([](const PeerChannel& channel) REQUIRES(kEngineLock) {
    return channel.connection().endsSoon();
  }) != nullptr;
}

std::shared_ptr<PeerChannel> ChannelTable::claimCopy(CopyJob& job) const {
  auto* const found =
      looks_.firstBusy([&](PeerChannel& channel) REQUIRES(kEngineLock) {
        return !channel.copies().overdue() && channel.claimCopy(job);
      });
  return found != nullptr ? found->shared_from_this() : nullptr;
}

PeerChannel* ChannelTable::serving(const Operation& operation) const {
  return looks_.firstBusy(
      [&](const PeerChannel& channel) REQUIRES(kEngineLock) {
        return operation.holder != nullptr && channel.parts() != nullptr &&
            channel.parts()->has(operation.holder);
      });
}

void ChannelTable::dropSocket(Entry& entry) {
  if (entry.socket) {
    epoll_.remove(entry.socket->fd());
    entry.channel->connection().useSocket(-1);
    entry.socket.reset();
  }
}

void ChannelTable::onSocket(uint64_t token) {
  for (auto& entry : entries_) {
    if (entry.token != token || !entry.socket) {
      continue;
    }
    const auto got = entry.passed.read(
        entry.socket->fd(),
        [&](uint64_t number, UniqueFd fd) REQUIRES(kEngineLock) {
          entry.channel->gpus().onDescriptor(number, std::move(fd));
        });
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) {
      return; // the peer has rung; some of many rings may remain
    }
    const int error = got < 0 ? errno : 0;
    dropSocket(entry);
    const auto& peer = entry.channel->peer();
    const auto who = "pid " + std::to_string(peer.pid) + " on " + peer.host;
    const Status why(
        ErrorCode::kPeerFailed,
        error == 0 ? "the peer's process has ended or shut down (" + who +
                " closed the connection)"
                   : "the peer's process or host is gone (" + who + ": " +
                errnoText(error) + ")");
    // A severed channel waits for another connection, with a new socket, and so
    // does the peer. If instead the peer has died, connecting will show the
    // death.
    const bool waits = entry.channel->alive() && !entry.channel->open();
    // No answer: the path may have failed, and not the peer.
    const bool unheard =
        error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    if (!waits && !(unheard && entry.channel->sever(why))) {
      entry.channel->peerClosed(why);
      if (unheard) { // nothing comes by the route's own socket, either
        entry.channel->fail(why);
      }
    }
    return;
  }
}

ChannelTable::Failures ChannelTable::failures(const ChannelKey& key) const {
  const auto found = failures_.find(key);
  return found == failures_.end() ? Failures{} : found->second;
}

void ChannelTable::noteFailure(const Entry& entry) {
  if (failures_.size() >= kMostFailures) {
    failures_.clear();
  }
  auto& failures = failures_[entry.key];
  ++failures.count;
  failures.last = entry.channel->failure();
}

bool ChannelTable::someOver() const {
  return looks_.firstBusy([](const PeerChannel& channel) REQUIRES(kEngineLock) {
    return channel.connection().hasRetired() ||
        channel.state() == PeerChannel::State::kFailed;
  }) != nullptr;
}

void ChannelTable::reap(std::vector<Retired>& retired) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (isOver(*entry, retired)) {
      looks_.remove(*entry->channel);
      entry = entries_.erase(entry);
    } else {
      ++entry;
    }
  }
}

// Returns true if the entry can be erased. Reserves room in `retired` first, so
// that no connection is taken and then lost.
bool ChannelTable::isOver(Entry& entry, std::vector<Retired>& retired) {
  const bool severed = entry.channel->connection().hasRetired();
  const bool failed = entry.channel->state() == PeerChannel::State::kFailed;
  if (!severed && !failed) {
    return false;
  }
  retired.reserve(retired.size() + 2);
  if (severed) {
    retired.push_back(
        {entry.channel->connection().takeRetired(), entry.channel, {}});
  }
  if (!failed) {
    return false;
  }
  // Lets the peer see at once that the connection is given up.
  dropSocket(entry);
  if (!entry.channel->idle()) {
    return false;
  }
  noteFailure(entry);
  if (auto connection = entry.channel->takeConnection()) {
    retired.push_back({std::move(connection), entry.channel, {}});
  }
  return true;
}

void ChannelTable::failAll(const Status& why) {
  for (const auto& entry : entries_) {
    entry.channel->fail(why);
  }
}

std::optional<ChannelTable::Retired> ChannelTable::takeFailed() {
  for (auto& entry : entries_) {
    if (auto connection = entry.channel->takeConnection()) {
      return Retired{
          std::move(connection),
          entry.channel,
          std::exchange(entry.socket, {})};
    }
  }
  return std::nullopt;
}

} // namespace dlslime
