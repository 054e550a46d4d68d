#include "engine/inspect/inspection_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace dlslime {

namespace {
constexpr int kSendBytes = 256 * 1024;
} // namespace

InspectionSocket::InspectionSocket(std::function<std::string()> report)
    : report_(std::move(report)) {
  try {
    listener_.emplace(Listener::onThisHost({}, kPrefix));
  } catch (const Error& error) {
    logInfo(
        std::string("the commands explain and top can't look at this "
                    "process: ") +
        error.what());
  }
}

void InspectionSocket::addTo(std::vector<pollfd>& fds) const {
  if (listener_ && visitors_.size() < kMostVisitors) {
    fds.push_back({listener_->fd(), POLLIN, 0});
  }
  for (const auto& visitor : visitors_) {
    fds.push_back({visitor.socket.fd(), POLLOUT, 0});
  }
}

void InspectionSocket::onPoll(const std::vector<pollfd>& fds) {
  const auto ready = [&fds](int fd) {
    return std::any_of(fds.begin(), fds.end(), [fd](const pollfd& entry) {
      return entry.fd == fd && entry.revents != 0;
    });
  };
  std::erase_if(visitors_, [&](Visitor& visitor) {
    return ready(visitor.socket.fd()) && send(visitor);
  });
  if (listener_ && ready(listener_->fd())) {
    accept();
  }
}

TimePoint InspectionSocket::nextDeadline() const {
  return visitors_.empty() ? never() : visitors_.front().until;
}

void InspectionSocket::expire(TimePoint now) {
  std::erase_if(visitors_, [now](const Visitor& visitor) {
    return visitor.until <= now;
  });
}

void InspectionSocket::accept() {
  while (visitors_.size() < kMostVisitors) {
    auto socket = listener_->accept();
    if (!socket) {
      return;
    }
    // A visitor that does not read costs the kernel no more, whatever the
    // machine's default is.
    setsockopt(
        socket->fd(), SOL_SOCKET, SO_SNDBUF, &kSendBytes, sizeof(kSendBytes));
    Visitor visitor{std::move(*socket), report_(), 0, deadlineAfter(kPatience)};
    if (!send(visitor)) {
      visitors_.push_back(std::move(visitor));
    }
  }
}

bool InspectionSocket::send(Visitor& visitor) {
  while (visitor.sent < visitor.text.size()) {
    const auto count = ::send(
        visitor.socket.fd(),
        visitor.text.data() + visitor.sent,
        visitor.text.size() - visitor.sent,
        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      return errno != EAGAIN && errno != EINTR; // else the visitor has gone
    }
    visitor.sent += static_cast<size_t>(count);
  }
  return true;
}

} // namespace dlslime
