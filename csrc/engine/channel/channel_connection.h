#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/channel/best_connection.h"
#include "engine/progress/engine_mutex.h"
#include "interface/peer_report.h"

namespace dlslime {

// The connections of a channel, one after the other: the present connection,
// the severed connection that still may touch memory, and what stays known of
// earlier ones. Under the engine's lock.
class ChannelConnection {
 public:
  explicit ChannelConnection(const PeerIdentity& peer) : peer_(peer) {}

  // Takes the first connection into use, or a replacement.
  void use(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began) REQUIRES(kEngineLock);
  // Notes that the connection in use replaces the severed one, as the pair's
  // connection number `generation`.
  void noteReplaced(uint32_t generation) REQUIRES(kEngineLock);
  // Sets the socket that this and all later connections are to use.
  void useSocket(int fd) REQUIRES(kEngineLock) {
    socket_ = fd;
    if (connection_) {
      connection_->useSocket(fd);
    }
  }
  explicit operator bool() const {
    return connection_ != nullptr;
  }
  Connection* operator->() const {
    return connection_.get();
  }
  Connection& operator*() const {
    return *connection_;
  }
  std::unique_ptr<Connection> take() REQUIRES(kEngineLock) {
    copyName_ = info().copyName;
    return std::move(connection_);
  }

  // Lets nothing more be sent over the connection. `broken`: it is lost;
  // otherwise it is given up for a better one.
  void sever(const Status& why, bool broken) REQUIRES(kEngineLock);
  // True once the severed connection has drained, or too much time has passed.
  bool mayRetire() const REQUIRES(kEngineLock) {
    return connection_->drained() || Clock::now() >= detachAt_;
  }
  // Takes the severed connection out of use.
  void retire() REQUIRES(kEngineLock) {
    retired_ = take();
  }
  // True if a retired connection can be taken.
  bool hasRetired() const REQUIRES(kEngineLock) {
    return retired_ != nullptr;
  }
  std::unique_ptr<Connection> takeRetired() REQUIRES(kEngineLock) {
    return std::move(retired_);
  }
  // Called when a connection taken out has been destroyed.
  void quieted() REQUIRES(kEngineLock) {
    quiet_ = true;
  }
  // True if no connection that is out of use touches memory.
  bool quiet() const REQUIRES(kEngineLock) {
    return quiet_;
  }
  // True if the connection was severed while working, so that no loss has to be
  // told.
  bool leftWhole() const REQUIRES(kEngineLock) {
    return leftWhole_;
  }
  // Number of the present connection in the life of the pair, counted from 1.
  uint32_t generation() const REQUIRES(kEngineLock) {
    return generation_;
  }

  // True if a device ends the connection's work, in microseconds, and perhaps
  // without telling.
  bool ofDevice() const REQUIRES(kEngineLock) {
    return connection_->replaceable() == ReplaceAbility::When::kBroken;
  }
  // True if the peer is making the last copies of a transfer.
  bool endsSoon() const REQUIRES(kEngineLock) {
    return connection_ && connection_->copying() != nullptr &&
        connection_->copying()->endsSoon();
  }
  // Name of the present or last route; empty before the first.
  const std::string& route() const REQUIRES(kEngineLock) {
    return route_;
  }
  const std::vector<RejectedRoute>& rejected() const REQUIRES(kEngineLock) {
    return rejected_;
  }
  MemoryRegistrar* registrar() const REQUIRES(kEngineLock) {
    return connection_ ? connection_->registrar() : nullptr;
  }
  // Of the connection; without one only the name of the copies is left.
  ConnectionInfo info() const REQUIRES(kEngineLock) {
    return connection_ ? connection_->info() : ConnectionInfo(copyName_);
  }
  // True if a connection was better once, or a better route was tried in vain.
  bool couldBeBetter() const REQUIRES(kEngineLock) {
    return best_.beats(*connection_) ||
        std::any_of(rejected_.begin(), rejected_.end(), [](const auto& entry) {
             return entry.tried;
           });
  }
  // Names the connection by its peer and route, for texts.
  std::string describe() const REQUIRES(kEngineLock);

 private:
  void say(const std::string& what) const REQUIRES(kEngineLock);

  const PeerIdentity& peer_;
  std::unique_ptr<Connection> connection_, retired_;
  std::vector<RejectedRoute> rejected_;
  int socket_ = -1;
  std::string route_;
  BestConnection best_;
  std::string_view copyName_; // of the last connection, once gone
  TimePoint detachAt_{}; // severed: end of waiting for drained()
  uint32_t generation_ = 1;
  uint32_t replacements_ = 0; // begun so far
  bool quiet_ = true;
  bool leftWhole_ = false;
};

} // namespace dlslime
