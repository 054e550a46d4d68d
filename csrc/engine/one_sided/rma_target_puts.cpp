#include <optional>

#include "base/memory/guarded_copy.h"
#include "engine/one_sided/frame_pieces.h"
#include "engine/one_sided/rma_target.h"

// Writes by peers in messages, used where the route can't move the bytes.

namespace dlslime {

namespace {
// Most failed writes, and most writes to GPUs, remembered until the last Put.
constexpr size_t kMostArriving = 65536;

size_t bytesOf(const std::vector<std::span<std::byte>>& places) {
  size_t bytes = 0;
  for (const auto& place : places) {
    bytes += place.size();
  }
  return bytes;
}

// Returns the destination of a Put's bytes; the payload has `size` bytes and
// starts with `begin`. Returns none if the pieces or the bytes are not all
// there, or if a piece is outside the region.
std::optional<Placement> placesOfPut(
    const wire::Put& put,
    const Region& region,
    ByteSpan begin,
    size_t size) {
  const uint64_t count = put.pieces;
  if (count > begin.size() / sizeof(wire::FramePiece)) {
    return std::nullopt;
  }
  Placement placement;
  placement.from = count * sizeof(wire::FramePiece);
  size_t rest = size - placement.from;
  for (size_t i = 0; i < count; ++i) {
    const auto piece = pieceAt(begin, i);
    if (!inside(region, piece) || piece.size > rest) {
      return std::nullopt;
    }
    placement.places.push_back({region.view().data + piece.offset, piece.size});
    rest -= piece.size;
  }
  return placement;
}
} // namespace

void RmaTarget::onPut(bool joined, const wire::Put& put, ByteSpan payload) {
  const auto region = joined ? lent(put.region) : nullptr;
  if (!region) {
    end(put.id,
        joined ? FinishStatus::kUnknownMemory : FinishStatus::kGroupGone);
    return;
  }
  if (region->handle().readOnly) {
    end(put.id, FinishStatus::kForReading);
    return;
  }
  const auto placement = placesOfPut(put, *region, payload, payload.size());
  if (!placement) {
    end(put.id, FinishStatus::kOutOfRange);
    return;
  }
  const auto& places = placement->places;
  write(
      put,
      region,
      payload.subspan(placement->from).first(bytesOf(places)),
      places);
}

Placement
RmaTarget::placementOf(const wire::Put& put, ByteSpan begin, size_t size) {
  const auto region = lent(put.region);
  if (!region || put.pieces > kMostPlaces || region->handle().readOnly ||
      region->accelerator() != nullptr ||
      failedPuts_.contains({put.region, put.id})) {
    return {};
  }
  return placesOfPut(put, *region, begin, size).value_or(Placement{});
}

void RmaTarget::onPlacedPut(bool joined, const wire::Put& put, Fault fault) {
  if (!joined || !lent(put.region)) {
    end(put.id,
        joined ? FinishStatus::kUnknownMemory : FinishStatus::kGroupGone);
    return;
  }
  putEnded(put, fault);
}

void RmaTarget::write(
    const wire::Put& put,
    const RegionPtr& region,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  if (region->accelerator() == nullptr) {
    writePlainly(put, bytes, places);
    return;
  }
  if (arriving_.size() >= kMostArriving && !arriving_.contains(put.id)) {
    end(put.id, FinishStatus::kFailed);
    return;
  }
  auto& arriving = arriving_[put.id];
  if (!arriving) {
    arriving = std::make_shared<Arriving>();
  }
  const auto user = userOf(region, [arriving](bool good) {
    --arriving->copies;
    arriving->failed |= !good;
  });
  ++arriving->copies;
  arriving->last |= put.last;
  gpus_.uploads().start(
      *region->accelerator(), region->view().device, bytes, places, user);
}

void RmaTarget::writePlainly(
    const wire::Put& put,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  const auto failed = failedPuts_.find({put.region, put.id});
  putEnded(
      put,
      failed == failedPuts_.end() ? scatterGuarded(bytes, places)
                                  : failed->second);
}

// Returns the fault of the write's earlier Puts. kNoScratch means not known:
// there were too many failed writes to keep.
Fault RmaTarget::failureOf(const wire::Put& put) const {
  const auto failed = failedPuts_.find({put.region, put.id});
  if (failed != failedPuts_.end()) {
    return failed->second;
  }
  return tooManyFailed_ ? Fault::kNoScratch : Fault::kNone;
}

// Notes the end of one Put: all bytes are in place unless there was a fault.
// Answers the last Put of a write.
void RmaTarget::putEnded(const wire::Put& put, Fault fault) {
  if (!put.last) {
    const auto id = std::pair(put.region, put.id);
    if (fault == Fault::kNone || failedPuts_.contains(id)) {
      return;
    }
    if (failedPuts_.size() < kMostArriving) {
      failedPuts_.insert({id, fault});
    } else {
      tooManyFailed_ = true;
    }
    return;
  }
  if (fault == Fault::kNone) {
    fault = failureOf(put);
  }
  failedPuts_.erase({put.region, put.id});
  const bool good = fault == Fault::kNone;
  end(put.id, good ? FinishStatus::kOk : FinishStatus::kUnwritable, fault);
}

// Answers writes to GPUs with all copies ended. Returns true if any entry is
// over; an entry of a failed write stays until the last Put.
bool RmaTarget::answerArrived() {
  return std::erase_if(arriving_, [this](const auto& entry) {
           const auto& [id, arriving] = entry;
           if (arriving->copies > 0 || (arriving->failed && !arriving->last)) {
             return false;
           }
           if (arriving->last) {
             end(id,
                 arriving->failed ? FinishStatus::kFailed : FinishStatus::kOk);
           }
           return true;
         }) != 0;
}

} // namespace dlslime
