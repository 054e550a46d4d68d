#include "shm/doorbell.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "core/status.h"

namespace dlslime::shm {

Doorbell::Doorbell()
    : segment_(Segment::create(kDoorbellBytes)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) {
    throwErrno("cannot create an eventfd", errno);
  }
}

void Doorbell::drain() {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = read(event_.get(), &count, sizeof(count));
}

UniqueFd Doorbell::duplicateEvent() const {
  UniqueFd copy(fcntl(event_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) {
    throwErrno("cannot duplicate an eventfd", errno);
  }
  return copy;
}

RemoteDoorbell::RemoteDoorbell(UniqueFd page, UniqueFd event)
    : segment_(Segment::adopt(std::move(page), kDoorbellBytes)),
      event_(std::move(event)) {
  // The peer chose this descriptor. A write to a pipe or socket could kill us
  // by a signal; a write to a full eventfd must not block us.
  char name[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(event_.get());
  const auto length = readlink(link.c_str(), name, sizeof(name) - 1);
  if (length <= 0 || std::string(name) != "anon_inode:[eventfd]") {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer's doorbell is refused: \"" + std::string(name) +
            "\" is not an eventfd");
  }
  const int flags = fcntl(event_.get(), F_GETFL);
  if (flags < 0 || fcntl(event_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throwErrno("the peer's doorbell is unusable", errno);
  }
}

void RemoteDoorbell::ring() {
  auto& asleep = reinterpret_cast<DoorbellPage*>(segment_.data())->asleep;
  // Orders what we published before the look at the flag; the sleeper sets
  // the flag before its last look at what we publish.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (asleep.load(std::memory_order_relaxed) != 0 &&
      asleep.exchange(0, std::memory_order_relaxed) != 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto put = write(event_.get(), &one, sizeof(one));
  }
}

} // namespace dlslime::shm
