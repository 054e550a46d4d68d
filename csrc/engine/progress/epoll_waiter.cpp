#include "engine/progress/epoll_waiter.h"

#include <sys/eventfd.h>

#include <array>
#include <cerrno>

#include "base/status.h"

namespace dlslime {

namespace {
constexpr uint64_t kKickToken = ~0ULL;
constexpr size_t kMostEvents = 16; // per wait()
} // namespace

EpollWaiter::EpollWaiter()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      kick_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !kick_) {
    throwErrno("cannot create an epoll set", errno);
  }
  ready_.reserve(kMostEvents);
  add(kick_.get(), kKickToken);
}

void EpollWaiter::add(int fd, uint64_t token) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = token;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throwErrno("cannot watch a descriptor", errno);
  }
}

void EpollWaiter::remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EpollWaiter::kick() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto put = write(kick_.get(), &one, sizeof(one));
}

const std::vector<uint64_t>& EpollWaiter::wait(TimePoint deadline) {
  std::array<epoll_event, kMostEvents> events{};
  const int count = epoll_wait(
      epoll_.get(),
      events.data(),
      static_cast<int>(events.size()),
      pollTimeoutMs(deadline));
  ready_.clear();
  for (int i = 0; i < count; ++i) {
    const auto token = events[static_cast<size_t>(i)].data.u64;
    if (token == kKickToken) {
      uint64_t counted = 0;
      [[maybe_unused]] const auto got =
          read(kick_.get(), &counted, sizeof(counted));
    } else {
      ready_.push_back(token);
    }
  }
  return ready_;
}

} // namespace dlslime
