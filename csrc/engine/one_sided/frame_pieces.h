#pragma once

#include <cstring>
#include <functional>

#include "base/log.h"
#include "engine/one_sided/region.h"
#include "engine/two_sided/outbound.h"
#include "engine/wire/one_sided_messages.h"
#include "interface/accelerator.h"

// Code shared by reads and writes in messages, at the owner of the memory.

namespace dlslime {

inline wire::FramePiece pieceAt(ByteSpan payload, size_t index) {
  wire::FramePiece piece; // read once: the peer may write the payload any time
  std::memcpy(&piece, payload.data() + index * sizeof(piece), sizeof(piece));
  return piece;
}

// Tells the peer how a write has ended, or why a read fails.
inline void tellEnd(
    Outbound& out,
    uint64_t id,
    FinishStatus status,
    Fault fault = Fault::kNone) REQUIRES(kEngineLock) {
  out.sendControl(wire::PutAck{status, id, fault});
}

inline bool inside(const Region& region, const wire::FramePiece& piece) {
  const uint64_t size = region.view().size;
  return piece.size <= size && piece.offset <= size - piece.size;
}

// Returns a CopyUser for copies between a GPU and pinned memory: the region
// counts as lent during each copy, and failures are logged.
inline CopyUser userOf(
    const RegionPtr& region,
    std::function<void(bool good)> ended) {
  return {
      [region]() REQUIRES(kEngineLock) { region->lend(); },
      [region, ended = std::move(ended)](const Status& status)
          REQUIRES(kEngineLock) {
            region->giveBack();
            ended(status.ok());
            if (!status.ok()) {
              logError(
                  region->describe() +
                  " could not serve a peer: " + status.message());
            }
          }};
}
} // namespace dlslime
