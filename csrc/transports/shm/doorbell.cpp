#include "transports/shm/doorbell.h"

#include <sys/socket.h>

#include <cerrno>

namespace dlslime::shm {

RemoteDoorbell::RemoteDoorbell(UniqueFd page)
    : segment_(Segment::adoptForReading(std::move(page), kDoorbellBytes)) {
  segment_.takeFd().reset(); // mapped memory needs none, and they are few
}

void RemoteDoorbell::ring() {
  // Orders what we published before the look at the word; the sleeper changes
  // the word before its last look at what we publish.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto now = turn();
  if (now % 2 != 0 && now != rung_) {
    const char byte = 0;
    const auto put = send(socket_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    // Of a full socket the bytes that are there wake the peer as well; of a
    // broken one it has gone.
    const bool again =
        put < 0 && (errno == ENOBUFS || errno == ENOMEM || errno == EINTR);
    rung_ = again ? 0 : now;
    unrung_ = again;
  }
}

} // namespace dlslime::shm
