#include "engine/channel/channel_connection.h"

#include <bit>

#include "base/log.h"

namespace dlslime {

namespace {
// A healthy device ends its work in microseconds; kernel networks take longer.
constexpr milliseconds kDrainTime{1000};
constexpr milliseconds kSlowDrainTime{10000};
} // namespace

void ChannelConnection::use(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected,
    bool began) {
  connection_ = std::move(connection);
  connection_->useSocket(socket_);
  rejected_ = std::move(rejected);
  route_ = connection_->route();
  best_.note(*connection_, began);
}

void ChannelConnection::sever(const Status& why, bool broken) {
  ++replacements_;
  say(describe() + (broken ? " is lost (" : " is given up (") + why.message() +
      "): the engine is connecting again");
  leftWhole_ = !broken;
  quiet_ = false;
  detachAt_ = deadlineAfter(ofDevice() ? kDrainTime : kSlowDrainTime);
  connection_->replacing()->sever();
}

void ChannelConnection::noteReplaced(uint32_t generation) {
  generation_ = generation;
  std::string reasons;
  for (const auto& entry : rejected_) {
    reasons += "; not over " + entry.route + ": " + entry.reason;
  }
  say("connected to pid " + std::to_string(peer_.pid) + " on " + peer_.host +
      " again, over " + route_ + " " + connection_->info().devices +
      ": lost messages are sent again" + reasons);
}

std::string ChannelConnection::describe() const {
  return "the connection to pid " + std::to_string(peer_.pid) + " on " +
      peer_.host + " over " + route_;
}

// Logs ever fewer warnings, since a peer may ask for connections without end.
void ChannelConnection::say(const std::string& what) const {
  if (!std::has_single_bit(replacements_)) {
    logInfo(what);
    return;
  }
  logWarning(
      replacements_ == 1 ? what
                         : what + " (the " + std::to_string(replacements_) +
              "th time; only the 1st, 2nd, 4th, 8th, ... are warnings)");
}

} // namespace dlslime
