#include "transports/shm/assists.h"

#include <algorithm>
#include <cerrno>

#include "transports/shm/cma.h"

namespace dlslime::shm {

void Assists::expose(uint64_t id, MemoryView view) {
  const auto index = static_cast<uint32_t>(id);
  if (index >= exposures_.size()) {
    exposures_.resize(index + 1);
  }
  exposures_[index] = {id, view};
}

void Assists::unexpose(uint64_t id) {
  const auto index = static_cast<uint32_t>(id);
  if (index < exposures_.size() && exposures_[index].id == id) {
    exposures_[index] = {};
  }
}

bool Assists::claim(CopyJob& job) {
  for (uint32_t i = 0; i < kDesks; ++i) {
    const auto piece = takeBack(desks_[i]);
    if (!piece) {
      continue;
    }
    job.token = i;
    if (prepare(desks_[i], *piece, job)) {
      return true;
    }
    finishPiece(desks_[i], EINVAL); // the desk matches no exposure
  }
  return false;
}

// Fills in the job for a piece; returns false if the desk matches no exposed
// message. The peer may write anything into the desk, so the local side of the
// copy is bounded by the local record of the message, and a false destination
// harms only the peer's memory.
bool Assists::prepare(CopyDesk& desk, uint32_t piece, CopyJob& job) {
  const auto id = desk.id.load(std::memory_order_relaxed);
  const auto index = static_cast<uint32_t>(id);
  if (id == 0 || index >= exposures_.size() || exposures_[index].id != id) {
    return false;
  }
  const MemoryView view = exposures_[index].view;
  const size_t size = pieceBytes(view.size);
  const size_t offset = piece * size;
  if (desk.length.load(std::memory_order_relaxed) != view.size ||
      offset >= view.size) {
    return false;
  }
  job.run = writeToPeer;
  job.local = view.data + offset;
  job.remote = desk.destination.load(std::memory_order_relaxed) + offset;
  job.size = std::min(size, view.size - offset);
  job.pid = static_cast<int>(pid_);
  return true;
}

void Assists::finish(const CopyJob& job) {
  finishPiece(desks_[job.token], job.error);
}

} // namespace dlslime::shm
