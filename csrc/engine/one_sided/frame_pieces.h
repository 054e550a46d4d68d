#pragma once

#include <cstring>
#include <functional>

#include "base/log.h"
#include "engine/one_sided/region.h"
#include "interface/accelerator.h"
#include "interface/message.h"

// What reads and writes in messages have in common at the owner of the memory.

namespace dlslime {

inline FramePiece pieceAt(ByteSpan payload, size_t index) {
  FramePiece piece; // read once: the peer may write the payload any time
  std::memcpy(&piece, payload.data() + index * sizeof(piece), sizeof(piece));
  return piece;
}

inline bool inside(const Region& region, const FramePiece& piece) {
  const uint64_t size = region.view().size;
  return piece.size <= size && piece.offset <= size - piece.size;
}

// For copies between a GPU and pinned memory: the region is lent meanwhile.
inline CopyUser userOf(
    const RegionPtr& region,
    std::function<void(bool good)> ended) {
  return {
      [region] { ++region->lent; },
      [region, ended = std::move(ended)](const Status& status) {
        --region->lent;
        ended(status.ok());
        if (!status.ok()) {
          logError(
              region->describe() +
              " could not serve a peer: " + status.message());
        }
      }};
}
} // namespace dlslime
