#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/bootstrap/listener.h"

namespace dlslime {

// Gives each process of this user that connects a report, and hangs up. The
// abstract unix socket has a random name, found in /proc/net/unix by its
// prefix; the kernel tells both ends the other's process and user. Wire-up
// thread only.
class InspectionSocket {
 public:
  static constexpr auto kPrefix = "dlslime-inspect-";
  static constexpr size_t kMostVisitors = 8; // more wait in the queue
  static constexpr milliseconds kPatience{2000}; // for a visitor that reads

  // `report` makes the text for a visitor. Where the kernel refuses a socket,
  // the process goes on without, and logs the reason.
  explicit InspectionSocket(std::function<std::string()> report);

  // Returns the abstract name; empty: there is no socket.
  std::string name() const {
    return listener_ ? listener_->names().front() : std::string();
  }
  void addTo(std::vector<pollfd>& fds) const;
  // Serves the descriptors that poll() found ready.
  void onPoll(const std::vector<pollfd>& fds);
  TimePoint nextDeadline() const;
  // Drops visitors that have not read the report by `now`.
  void expire(TimePoint now);

 private:
  struct Visitor {
    ControlSocket socket;
    std::string text;
    size_t sent;
    TimePoint until;
  };
  void accept();
  static bool send(Visitor& visitor); // true: finished

  const std::function<std::string()> report_;
  std::optional<Listener> listener_;
  std::vector<Visitor> visitors_; // the oldest first
};

} // namespace dlslime
