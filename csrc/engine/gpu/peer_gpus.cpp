#include "engine/gpu/peer_gpus.h"

#include <utility>

#include "base/log.h"

namespace dlslime {

namespace {
// Most allocations kept for a peer: an allocation of torch's expandable
// segments has 20 MiB, so the limit exceeds the memory of any GPU.
constexpr size_t kMostShared = 1 << 16;
// Size limit of the description of an allocation.
constexpr size_t kMostShareBytes = 256;
} // namespace

void PeerGpus::onShare(const wire::Share& share, ByteSpan payload) {
  const auto id = share.allocation;
  const bool room = shared_.size() < kMostShared || shared_.contains(id);
  if (!room || payload.size() > kMostShareBytes) {
    forget(id);
  } else if (!mapped_) {
    shared_[id].assign(payload.begin(), payload.end());
  } else if (tell(id, payload)) {
    shared_[id];
  } else {
    shared_.erase(id);
  }
}

void PeerGpus::forget(uint64_t id) {
  shared_.erase(id);
  if (mapped_) {
    mapped_->forget(id);
  }
}

void PeerGpus::beginToMap(Accelerator& gpus) {
  mapped_ = gpus.sharing().peerMemory(pid_);
  for (auto entry = shared_.begin(); entry != shared_.end();) {
    const bool known = tell(entry->first, std::exchange(entry->second, {}));
    entry = known ? std::next(entry) : shared_.erase(entry);
  }
}

bool PeerGpus::tell(uint64_t id, ByteSpan description) {
  try {
    mapped_->add(id, description);
    return true;
  } catch (const Error& error) {
    say(error);
    return false;
  }
}

bool PeerGpus::move(
    Accelerator& gpus,
    int device,
    const RemoteBuffer& there,
    bool write,
    std::span<const Piece> pieces,
    Accelerator::Done done) {
  const uint64_t id = uint64_t{there.keys[1]} << 32 | there.keys[0];
  if (there.slot != RemoteBuffer::kOnGpu) {
    return false;
  }
  if (!mapped_) {
    beginToMap(gpus);
  }
  if (!shared_.contains(id)) {
    return false;
  }
  bool begun = false;
  try {
    begun = mapped_->move(device, write, pieces, std::move(done));
  } catch (const Error& error) {
    say(error);
  }
  // Also after an error, which ends the search for further allocations.
  for (const auto one : mapped_->takeOutdated()) {
    askAgain_(one, false);
  }
  for (const auto one : mapped_->takeUnfetchable()) {
    askAgain_(one, true);
  }
  return begun;
}

void PeerGpus::say(const Error& error) {
  if (said_.isNew(error.what())) {
    logWarning(
        "memory of a GPU of pid " + std::to_string(peer_.pid) + " on " +
        peer_.host +
        " is reached through pinned memory, several times slower than over "
        "NVLink, because " +
        error.what());
  }
}

} // namespace dlslime
