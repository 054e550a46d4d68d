#include "transports/tcp/ready_set.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>

#include "base/status.h"

namespace dlslime::tcp {

namespace {
constexpr size_t kMostEvents = 64; // events taken by a single look
constexpr microseconds kPause{2}; // several times the cost of a look
} // namespace

ReadySet::ReadySet()
    : epoll_(UniqueFd(epoll_create1(EPOLL_CLOEXEC))),
      event_(UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = event_.get();
  if (epoll_.get() < 0 || event_.get() < 0 ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) != 0) {
    throwErrno("cannot create an epoll set", errno);
  }
}

ReadySet::News ReadySet::add(int fd) {
  const auto news = std::make_shared<std::atomic<bool>>(true);
  const MutexLock lock(mutex_);
  news_[fd] = news;
  epoll_event event{};
  // Edge-triggered, so that a change is told only once: a socket with bytes
  // left unread for a while wakes no thread in the meantime.
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    news_.erase(fd);
    throwErrno("cannot watch a socket", error);
  }
  return news;
}

void ReadySet::remove(int fd) {
  const MutexLock lock(mutex_);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  news_.erase(fd);
}

void ReadySet::look() {
  const auto now = Clock::now().time_since_epoch();
  const auto before = TimePoint::duration(looked_.load());
  if (now - before >= kPause) {
    looked_ = now.count();
    lookNow();
  }
}

void ReadySet::lookNow() {
  std::array<epoll_event, kMostEvents> events{};
  const MutexLock lock(mutex_);
  const int count = epoll_wait(
      epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool taken = false;
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    const auto found = news_.find(fd);
    if (found != news_.end()) {
      *found->second = true;
      taken = true;
    } else if (fd == event_.get() && !asleep_) {
      uint64_t counted = 0;
      [[maybe_unused]] const auto got = read(fd, &counted, sizeof(counted));
    }
  }
  if (taken && asleep_) {
    wake();
  }
}

void ReadySet::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto put = write(event_.get(), &one, sizeof(one));
}

void ReadySet::beginSleep() {
  const MutexLock lock(mutex_);
  asleep_ = true;
}

void ReadySet::endSleep() {
  const MutexLock lock(mutex_);
  asleep_ = false;
}

} // namespace dlslime::tcp
