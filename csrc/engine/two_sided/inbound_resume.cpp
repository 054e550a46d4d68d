#include <algorithm>

#include "engine/two_sided/inbound.h"
#include "engine/two_sided/receiving_group.h"

// What becomes of receives when the connection is replaced.

namespace dlslime {

void Inbound::sever() {
  severed_ = true;
  mayBePushed_ = false;
}

void Inbound::detach() {
  connection_ = nullptr;
  ready_.detach();
}

void Inbound::quieted() {
  for (const auto id : pulls_.ids()) {
    auto& pull = *pulls_.find(id);
    if (pull.framed || pull.byGpu) {
      continue; // its pieces are messages like all others; or none is needed
    }
    if (pull.receive->cancelStatus.ok()) {
      pull.waiting = true;
    } else {
      endPull(id, pull.receive->cancelStatus);
    }
  }
}

void Inbound::onPartlyPulled(uint64_t pullId, size_t arrived) {
  if (auto* const pull = pulls_.find(pullId)) {
    pull->arrived += std::min<uint64_t>(arrived, pull->length - pull->arrived);
  }
}

void Inbound::resume(Connection& connection) {
  connection_ = &connection;
  const auto range = connection.pushRange();
  mayBePushed_ = range.least <= range.most;
  severed_ = false;
  ++generation_;
  ready_.resume(connection);
}

void Inbound::onMoved(ReceivingGroup& group, const MessageHeader& header) {
  if (severed_) {
    return; // from there, too, once there is another connection
  }
  const auto memory = remoteOf(header);
  const int source = static_cast<int>(header.source);
  if (auto* const arrival =
          group.matcher().findArrival(source, header.tag, this, header.id)) {
    arrival->remote = memory;
    arrival->generation = generation_;
    return;
  }
  for (const auto id : pulls_.ids()) {
    const auto& pull = *pulls_.find(id);
    if (pull.waiting && pull.senderId == header.id) {
      fetch(id, memory);
      return;
    }
  } // else it has ended, and the sender will learn it
}

} // namespace dlslime
