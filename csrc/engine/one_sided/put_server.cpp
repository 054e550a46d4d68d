#include "engine/one_sided/put_server.h"

#include <optional>

#include "base/memory/guarded_copy.h"
#include "engine/one_sided/frame_pieces.h"

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

void PutServer::onPut(
    const wire::Put& put,
    const RegionPtr& region,
    ByteSpan payload) {
  if (region->handle().readOnly) {
    tellEnd(out_, put.id, FinishStatus::kForReading);
    return;
  }
  const auto placement = placesOfPut(put, *region, payload, payload.size());
  if (!placement) {
    tellEnd(out_, put.id, FinishStatus::kOutOfRange);
    return;
  }
  const auto& places = placement->places;
  write(
      put,
      region,
      payload.subspan(placement->from).first(bytesOf(places)),
      places);
}

Placement PutServer::placementOf(
    const wire::Put& put,
    const Region& region,
    ByteSpan begin,
    size_t size) const {
  if (put.pieces > kMostPlaces || region.handle().readOnly ||
      region.accelerator() != nullptr ||
      failedPuts_.contains({put.region, put.id})) {
    return {};
  }
  return placesOfPut(put, region, begin, size).value_or(Placement{});
}

void PutServer::write(
    const wire::Put& put,
    const RegionPtr& region,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  if (region->accelerator() == nullptr) {
    writePlainly(put, bytes, places);
    return;
  }
  if (arriving_.size() >= kMostArriving && !arriving_.contains(put.id)) {
    tellEnd(out_, put.id, FinishStatus::kFailed);
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

void PutServer::writePlainly(
    const wire::Put& put,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  const auto failed = failedPuts_.find({put.region, put.id});
  onEnded(
      put,
      failed == failedPuts_.end() ? scatterGuarded(bytes, places)
                                  : failed->second);
}

// Returns the fault of the write's earlier Puts. kNoScratch means not known:
// there were too many failed writes to keep.
Fault PutServer::failureOf(const wire::Put& put) const {
  const auto failed = failedPuts_.find({put.region, put.id});
  if (failed != failedPuts_.end()) {
    return failed->second;
  }
  return tooManyFailed_ ? Fault::kNoScratch : Fault::kNone;
}

void PutServer::onEnded(const wire::Put& put, Fault fault) {
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
  tellEnd(
      out_,
      put.id,
      good ? FinishStatus::kOk : FinishStatus::kUnwritable,
      fault);
}

bool PutServer::answerArrived() {
  return std::erase_if(
             arriving_, [this](const auto& entry) REQUIRES(kEngineLock) {
               const auto& [id, arriving] = entry;
               if (arriving->copies > 0 ||
                   (arriving->failed && !arriving->last)) {
                 return false;
               }
               if (arriving->last) {
                 tellEnd(
                     out_,
                     id,
                     arriving->failed ? FinishStatus::kFailed
                                      : FinishStatus::kOk);
               }
               return true;
             }) != 0;
}

void PutServer::forget(uint64_t region) {
  failedPuts_.erase(
      failedPuts_.lower_bound({region, 0}),
      failedPuts_.upper_bound({region, UINT64_MAX}));
}

void PutServer::clear() {
  arriving_.clear();
  failedPuts_.clear();
}

} // namespace dlslime
