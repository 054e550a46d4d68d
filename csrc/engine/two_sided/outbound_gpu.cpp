#include <algorithm>
#include <utility>

#include "engine/two_sided/outbound.h"

// How the peer is told of memory of our GPUs.

namespace dlslime {

RemoteBuffer Outbound::expose(uint64_t id, const Operation& operation) {
  const auto view = operation.view();
  if (view.onDevice() && !connection_->takesGpus()) {
    return {0, {}, RemoteBuffer::kUnreachable};
  }
  return connection_->expose(id, view);
}

// What there is in pinned memory of a message that is streamed.
ByteSpan Outbound::fromGpu(Exposure& exposure, size_t most) {
  const auto view = exposure.operation->view();
  exposure.staged->fetchAhead([&](size_t room, auto& next) {
    const auto size = std::min<size_t>(room, view.size - exposure.fetched);
    next.push_back({view.data + exposure.fetched, size});
    exposure.fetched += size;
  });
  return exposure.staged->front(most);
}

bool Outbound::tell(MessageType type, uint64_t id, ByteSpan payload) {
  MessageHeader header;
  header.type = type;
  header.id = id;
  header.sequence = nextSequence_;
  const bool sent = connection_->send(header, payload);
  nextSequence_ += sent ? 1 : 0;
  return sent;
}

bool Outbound::show(
    Accelerator& gpus,
    const MemoryView& view,
    RemoteBuffer& memory) {
  memory = {0, {}, RemoteBuffer::kUnreachable};
  if (!connection_->onThisHost()) {
    return true;
  }
  gpus_ = &gpus;
  const auto shared = gpus.share(view);
  if (shared.empty()) {
    return true;
  }
  bool first = true;
  for (const auto id : shared) {
    if (shown_.contains(id)) {
      continue;
    }
    if (std::exchange(first, false) && !dropUnshared(gpus)) {
      return false; // what was there before has to go first
    }
    const auto description = gpus.describeShared(id);
    if (description.empty()) {
      return true;
    }
    if (!tell(MessageType::kShare, id, description)) {
      return false;
    }
    shown_.insert(id);
  }
  memory.address = reinterpret_cast<uint64_t>(view.data);
  memory.keys = {
      static_cast<uint32_t>(shared[0]),
      static_cast<uint32_t>(shared[0] >> 32),
      0};
  memory.slot = RemoteBuffer::kOnGpu;
  return true;
}

// The peer has mapped what we have freed since: the GPU gets it back when both
// have let go of it.
bool Outbound::dropUnshared(Accelerator& gpus) {
  bool room = connection_ != nullptr && !severed_ && !failed_;
  std::erase_if(shown_, [&](uint64_t id) {
    const bool gone = room && !gpus.isShared(id);
    room = room && (!gone || tell(MessageType::kUnshare, id, {}));
    return gone && room;
  });
  return room;
}

// If it is still shared; else dropUnshared() says so. Without room nothing: the
// peer asks again when it needs it.
void Outbound::onReshare(const MessageHeader& header) {
  if (!shown_.contains(header.id) || !gpus_->isShared(header.id)) {
    return;
  }
  const auto description = gpus_->describeShared(header.id);
  MessageHeader share;
  share.type = MessageType::kShare;
  share.id = header.id;
  if (!description.empty()) {
    static_cast<void>(sendNow(share, description));
  }
}

void Outbound::addShown(const MemoryView& view, std::set<uint64_t>& ids) const {
  if (!shown_.empty() && view.onDevice()) {
    const auto shared = view.accelerator->share(view);
    ids.insert(shared.begin(), shared.end());
  }
}

void Outbound::addShownInUse(std::set<uint64_t>& ids) {
  for (const auto id : exposures_.ids()) {
    addShown(exposures_.find(id)->operation->view(), ids);
  }
}

} // namespace dlslime
