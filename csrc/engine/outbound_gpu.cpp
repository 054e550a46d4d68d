#include <algorithm>
#include <utility>

#include "engine/outbound.h"

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
  const auto shared = gpus.share(view);
  if (shared.empty()) {
    return true;
  }
  bool first = true;
  for (const auto id : shared) {
    if (shown_.contains(id)) {
      continue;
    }
    if (std::exchange(first, false)) {
      dropUnshared(gpus);
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
void Outbound::dropUnshared(Accelerator& gpus) {
  std::erase_if(shown_, [&](uint64_t id) {
    return !gpus.isShared(id) && tell(MessageType::kUnshare, id, {});
  });
}

} // namespace dlslime
