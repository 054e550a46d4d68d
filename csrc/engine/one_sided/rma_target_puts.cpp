#include <optional>

#include "base/memory/guarded_copy.h"
#include "engine/one_sided/frame_pieces.h"
#include "engine/one_sided/rma_target.h"

// What peers write in messages, where the route can't.

namespace dlslime {

namespace {
// Writes that have failed, or those to GPUs, whose end has not come.
constexpr size_t kMostArriving = 65536;

size_t bytesOf(const std::vector<std::span<std::byte>>& places) {
  size_t bytes = 0;
  for (const auto& place : places) {
    bytes += place.size();
  }
  return bytes;
}

// Where a kPut, whose payload of `size` bytes begins so, wants its bytes.
// Nothing: its pieces are not all there, or not all in the region.
std::optional<Placement> placesOfPut(
    const MessageHeader& header,
    const Region& region,
    ByteSpan begin,
    size_t size) {
  const uint64_t count = header.length;
  if (count > begin.size() / sizeof(FramePiece)) {
    return std::nullopt;
  }
  Placement placement;
  placement.from = count * sizeof(FramePiece);
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

void RmaTarget::onPut(const MessageHeader& header, ByteSpan payload) {
  const auto region = lent(header.offset);
  if (!region) {
    answer(MessageType::kPutAck, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  if (region->handle().readOnly) {
    answer(MessageType::kPutAck, header.id, FinishStatus::kForReading);
    return;
  }
  const auto placement = placesOfPut(header, *region, payload, payload.size());
  if (!placement) {
    answer(MessageType::kPutAck, header.id, FinishStatus::kOutOfRange);
    return;
  }
  const auto& places = placement->places;
  put(header,
      region,
      payload.subspan(placement->from).first(bytesOf(places)),
      places);
}

Placement RmaTarget::placementOf(const MessageHeader& header, ByteSpan begin) {
  const auto region = lent(header.offset);
  if (!region || header.length > kMostPlaces || region->handle().readOnly ||
      region->accelerator() != nullptr ||
      failedPuts_.contains({header.offset, header.id})) {
    return {};
  }
  return placesOfPut(header, *region, begin, header.payloadSize)
      .value_or(Placement{});
}

void RmaTarget::onPlacedPut(const MessageHeader& header, Fault fault) {
  if (!lent(header.offset)) {
    answer(MessageType::kPutAck, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  putEnded(header, fault);
}

void RmaTarget::put(
    const MessageHeader& header,
    const RegionPtr& region,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  if (region->accelerator() == nullptr) {
    putPlainly(header, bytes, places);
    return;
  }
  if (arriving_.size() >= kMostArriving && !arriving_.contains(header.id)) {
    answer(MessageType::kPutAck, header.id, FinishStatus::kFailed);
    return;
  }
  auto& arriving = arriving_[header.id];
  if (!arriving) {
    arriving = std::make_shared<Arriving>();
  }
  const auto user = userOf(region, [arriving](bool good) {
    --arriving->copies;
    arriving->failed |= !good;
  });
  ++arriving->copies;
  arriving->last |= header.slot != 0;
  gpus_.uploads().start(
      *region->accelerator(), region->view().device, bytes, places, user);
}

void RmaTarget::putPlainly(
    const MessageHeader& header,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  const auto failed = failedPuts_.find({header.offset, header.id});
  putEnded(
      header,
      failed == failedPuts_.end() ? scatterGuarded(bytes, places)
                                  : failed->second);
}

// Of all that has come of this write.
Fault RmaTarget::failureOf(const MessageHeader& header) const {
  const auto failed = failedPuts_.find({header.offset, header.id});
  if (failed != failedPuts_.end()) {
    return failed->second;
  }
  return tooManyFailed_ ? Fault::kNoScratch : Fault::kNone;
}

// The bytes of one kPut are where they belong, unless there was a fault.
void RmaTarget::putEnded(const MessageHeader& header, Fault fault) {
  if (header.slot == 0) {
    const auto id = std::pair(header.offset, header.id);
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
    fault = failureOf(header);
  }
  failedPuts_.erase({header.offset, header.id});
  const bool good = fault == Fault::kNone;
  answer(
      MessageType::kPutAck,
      header.id,
      good ? FinishStatus::kOk : FinishStatus::kUnwritable,
      fault);
}

// Says what has arrived. True if anything has.
bool RmaTarget::answerArrived() {
  return std::erase_if(arriving_, [this](const auto& entry) {
           const auto& [id, arriving] = entry;
           if (arriving->copies > 0 || (arriving->failed && !arriving->last)) {
             return false;
           }
           if (arriving->last) {
             answer(
                 MessageType::kPutAck,
                 id,
                 arriving->failed ? FinishStatus::kFailed : FinishStatus::kOk);
           }
           return true;
         }) != 0;
}

} // namespace dlslime
