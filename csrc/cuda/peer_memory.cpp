#include "cuda/peer_memory.h"

#include <algorithm>
#include <iterator>

namespace dlslime::cuda {

void PeerMemory::add(uint64_t id, ByteSpan description) {
  const auto exported = decodeAllocation(description);
  if (exported.id != id) {
    throw Error(
        ErrorCode::kTransportFailed,
        "a peer shares GPU memory with the number " + std::to_string(id) +
            ", and describes another one, " + std::to_string(exported.id));
  }
  forget(id);
  // What was there has been freed: those who share say that first.
  const auto before = known_.find(exported.base);
  if (before != known_.end()) {
    forget(before->second.exported.id);
  }
  known_[exported.base] = {exported, {}, {}};
  bases_[id] = exported.base;
}

void PeerMemory::forget(uint64_t id) {
  const auto found = bases_.find(id);
  if (found != bases_.end()) {
    known_.erase(found->second);
    bases_.erase(found);
  }
}

PeerMemory::Known& PeerMemory::find(uint64_t address) {
  const auto after = known_.upper_bound(address);
  if (after != known_.begin()) {
    auto& [base, known] = *std::prev(after);
    if (address - base < known.exported.size) {
      return known;
    }
  }
  throw Error(
      ErrorCode::kTransportFailed,
      "the peer names GPU memory at " + std::to_string(address) +
          ", which it has not shared");
}

const PeerMemory::MappingPtr& PeerMemory::mapFor(
    const std::shared_ptr<Gpu>& gpu,
    Known& known) {
  if (!known.problem.ok()) {
    throw Error(known.problem);
  }
  auto& mapped = known.mapped[gpu->ordinal()];
  if (!mapped) {
    try {
      mapped = std::make_shared<const Mapping>(gpu, known.exported, pid_);
    } catch (const Error& error) {
      known.problem = error.status(); // not tried again
      throw;
    }
  }
  return mapped;
}

void PeerMemory::move(
    int device,
    bool write,
    std::span<const Piece> pieces,
    Accelerator::Done done) {
  const auto gpu = gpuOf_(device);
  std::vector<Copy> copies;
  std::vector<MappingPtr> used;
  copies.reserve(pieces.size());
  for (const auto& piece : pieces) {
    for (size_t at = 0; at < piece.size;) {
      const auto remote = piece.remote + at;
      auto& known = find(remote);
      const auto left = known.exported.base + known.exported.size - remote;
      const auto size = std::min<size_t>(piece.size - at, left);
      const auto& mapping = mapFor(gpu, known);
      const auto here = reinterpret_cast<DevicePointer>(piece.local) + at;
      const auto there = mapping->at(remote, size);
      copies.push_back(
          write ? Copy{there, here, size} : Copy{here, there, size});
      if (used.empty() || used.back() != mapping) {
        used.push_back(mapping);
      }
      at += size;
    }
  }
  // Mapped until the copies are over, whatever the peer says meanwhile.
  start_(device, copies, [used, done = std::move(done)](const Status& status) {
    done(status);
  });
}

} // namespace dlslime::cuda
