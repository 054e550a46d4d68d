#include "transports/shm/doorbell.h"

#include <sys/socket.h>

#include <cerrno>

namespace dlslime::shm {

RemoteDoorbell::RemoteDoorbell(UniqueFd page)
    : segment_(Segment::adoptForReading(std::move(page), kDoorbellBytes)) {
  // The mapping needs no descriptor, and a process has only few of them.
  segment_.takeFd().reset();
}

void RemoteDoorbell::ring() {
  // The fence orders the published data before the look at the turn; a peer
  // falling asleep changes the turn before the last look at published data.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto now = turn();
  if (now % 2 != 0 && now != rung_) {
    const char byte = 0;
    const auto put = send(socket_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    // A full socket already holds bytes to wake the peer; the peer of a broken
    // socket has gone.
    const bool again =
        put < 0 && (errno == ENOBUFS || errno == ENOMEM || errno == EINTR);
    rung_ = again ? 0 : now;
    unrung_ = again;
  }
}

} // namespace dlslime::shm
