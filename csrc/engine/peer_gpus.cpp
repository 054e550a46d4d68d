#include "engine/peer_gpus.h"

#include "core/log.h"

namespace dlslime {

namespace {
// Of what a peer may make us keep about its GPUs: programs have some dozens of
// allocations.
constexpr size_t kMostShared = 4096;
constexpr size_t kMostShareBytes = 256;
} // namespace

void PeerGpus::onShare(const MessageHeader& header, ByteSpan payload) {
  if (header.type == MessageType::kShare && payload.size() <= kMostShareBytes &&
      shared_.size() < kMostShared) {
    shared_[header.id].assign(payload.begin(), payload.end());
    return;
  }
  shared_.erase(header.id);
  if (mapped_) {
    mapped_->forget(header.id);
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
  const auto shared =
      there.slot == RemoteBuffer::kOnGpu ? shared_.find(id) : shared_.end();
  if (shared == shared_.end()) {
    return false;
  }
  try {
    if (!mapped_) {
      mapped_ = gpus.peerMemory();
    }
    mapped_->move(device, shared->second, write, pieces, std::move(done));
    return true;
  } catch (const Error& error) {
    logWarning(
        "memory of a GPU of pid " + std::to_string(peer_.pid) + " on " +
        peer_.host +
        " is reached through pinned memory, several times slower than by "
        "NVLink, because " +
        error.what());
    shared_.erase(shared); // said once, and not tried again
    return false;
  }
}

} // namespace dlslime
