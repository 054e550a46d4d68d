#include <algorithm>
#include <utility>

#include "engine/two_sided/outbound.h"

// Part of Outbound: telling the peer of memory of our GPUs.

namespace dlslime {

RemoteBuffer Outbound::expose(uint64_t id, const Operation& operation) {
  const auto view = operation.view();
  if (view.onDevice() && !connection_->takesGpus()) {
    return {0, {}, RemoteBuffer::kUnreachable};
  }
  auto* const pulling = connection_->pulling();
  return pulling != nullptr ? pulling->expose(id, view) : RemoteBuffer{};
}

// Returns bytes of a streamed message that have come into pinned memory.
ByteSpan Outbound::fromGpu(Exposure& exposure, size_t most) {
  const auto view = exposure.operation->view();
  exposure.staged->fetchAhead([&](size_t room, auto& next) {
    const auto size = std::min<size_t>(room, view.size - exposure.fetched);
    next.push_back({view.data + exposure.fetched, size});
    exposure.fetched += size;
  });
  return exposure.staged->front(most);
}

bool Outbound::tell(MessageHeader header, ByteSpan payload) {
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
  const auto shared = gpus.sharing().share(view);
  if (shared.empty()) {
    return true;
  }
  bool first = true;
  for (const auto id : shared) {
    if (shown_.contains(id)) {
      continue;
    }
    if (std::exchange(first, false) && !dropUnshared(gpus)) {
      return false; // freed allocations go first
    }
    const auto description = gpus.sharing().describeShared(id);
    if (description.empty()) {
      return true;
    }
    if (!tell(wire::encode(wire::Share{id}), description)) {
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

// Unshares freed allocations: a GPU gets memory back when both ends have let go
// of it.
bool Outbound::dropUnshared(Accelerator& gpus) {
  bool room = connection_ != nullptr && !severed_ && !failed_;
  std::erase_if(shown_, [&](uint64_t id) {
    const bool gone = room && !gpus.sharing().isShared(id);
    room = room && (!gone || tell(wire::encode(wire::Unshare{id}), {}));
    return gone && room;
  });
  return room;
}

// Answers only if the allocation is still shared: else dropUnshared() tells.
// Without room sends nothing: the peer asks again when in need.
void Outbound::onReshare(const wire::Reshare& reshare) {
  const auto id = reshare.allocation;
  if (!shown_.contains(id) || !gpus_->sharing().isShared(id)) {
    return;
  }
  const auto description = gpus_->sharing().describeShared(id);
  if (!description.empty()) {
    static_cast<void>(sendNow(wire::encode(wire::Share{id}), description));
  }
}

void Outbound::addShown(const MemoryView& view, std::set<uint64_t>& ids) const {
  if (!shown_.empty() && view.onDevice()) {
    const auto shared = view.accelerator->sharing().share(view);
    ids.insert(shared.begin(), shared.end());
  }
}

void Outbound::addShownInUse(std::set<uint64_t>& ids) {
  for (const auto id : exposures_.ids()) {
    addShown(exposures_.find(id)->operation->view(), ids);
  }
}

} // namespace dlslime
