#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/channel/best_connection.h"
#include "interface/peer_report.h"

namespace dlslime {

// The connections of a channel, one after the other, and what stays known of
// them. Under the engine's lock.
class ConnectionSlot {
 public:
  void use(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began) {
    connection_ = std::move(connection);
    connection_->useSocket(socket_);
    rejected_ = std::move(rejected);
    route_ = connection_->route();
    best_.note(*connection_, began);
  }
  // Sets the socket that this and all later connections are to use.
  void useSocket(int fd) {
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
  std::unique_ptr<Connection> take() {
    copyName_ = info().copyName;
    return std::move(connection_);
  }

  // Name of the present or last route; empty before the first.
  const std::string& route() const {
    return route_;
  }
  const std::vector<RejectedRoute>& rejected() const {
    return rejected_;
  }
  MemoryRegistrar* registrar() const {
    return connection_ ? connection_->registrar() : nullptr;
  }
  // Of the connection; without one only the name of the copies is left.
  ConnectionInfo info() const {
    return connection_ ? connection_->info() : ConnectionInfo(copyName_);
  }
  // True if a connection was better once, or a better route was tried in vain.
  bool couldBeBetter() const {
    return best_.beats(*connection_) ||
        std::any_of(rejected_.begin(), rejected_.end(), [](const auto& entry) {
             return entry.tried;
           });
  }

 private:
  std::unique_ptr<Connection> connection_;
  std::vector<RejectedRoute> rejected_;
  int socket_ = -1;
  std::string route_;
  BestConnection best_;
  std::string_view copyName_; // of the last connection, once gone
};

} // namespace dlslime
