#include "engine/gpu/peer_gpus.h"

#include <utility>

#include "base/log.h"

namespace dlslime {

namespace {
// Of what a peer may make us keep about its GPUs: an allocation of torch's
// expandable segments is of 20 MiB, so that this is more than a GPU has.
constexpr size_t kMostShared = 1 << 16;
constexpr size_t kMostShareBytes = 256;
} // namespace

void PeerGpus::onShare(const MessageHeader& header, ByteSpan payload) {
  const bool room = shared_.size() < kMostShared || shared_.contains(header.id);
  const bool taken = header.type == MessageType::kShare && room &&
      payload.size() <= kMostShareBytes;
  if (!taken) {
    shared_.erase(header.id);
    if (mapped_) {
      mapped_->forget(header.id);
    }
    return;
  }
  if (!mapped_) {
    shared_[header.id].assign(payload.begin(), payload.end());
  } else if (tell(header.id, payload)) {
    shared_[header.id];
  } else {
    shared_.erase(header.id);
  }
}

void PeerGpus::beginToMap(Accelerator& gpus) {
  mapped_ = gpus.peerMemory(pid_);
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
  try {
    const bool begun = mapped_->move(device, write, pieces, std::move(done));
    for (const auto one : mapped_->takeOutdated()) {
      askAgain_(one);
    }
    return begun;
  } catch (const Error& error) {
    say(error);
    return false;
  }
}

void PeerGpus::say(const Error& error) {
  if (said_.isNew(error.what())) {
    logWarning(
        "memory of a GPU of pid " + std::to_string(peer_.pid) + " on " +
        peer_.host +
        " is reached through pinned memory, several times slower than by "
        "NVLink, because " +
        error.what());
  }
}

} // namespace dlslime
