#include "shm/doorbell.h"

#include <sys/socket.h>

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
    rung_ = now;
    const char byte = 0;
    // Not sent: it is full of others, which wake the peer as well; or the peer
    // has gone.
    [[maybe_unused]] const auto put =
        send(socket_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

} // namespace dlslime::shm
