#include "engine/one_sided/frame_receiver.h"

#include <algorithm>
#include <string>

#include "base/memory/guarded_copy.h"

namespace dlslime {

namespace {
// Returns the failure reported by the owner of the memory.
Status refused(const wire::PutAck& ack) {
  const auto status = ack.status;
  const bool unwritable = status == FinishStatus::kUnwritable;
  if (unwritable || status == FinishStatus::kUnreadable) {
    const auto told = copyFaultOf(codeOf({false, ack.fault}));
    return statusOf(told, unwritable);
  }
  if (status == FinishStatus::kForReading) {
    return {ErrorCode::kPeerFailed, "the peer's region is for reading"};
  }
  return {
      ErrorCode::kPeerFailed,
      status == FinishStatus::kFailed
          ? "the peer's GPU could not copy the bytes; the peer's log says why"
          : "the peer could not serve the transfer (status " +
              std::to_string(static_cast<int>(status)) +
              "): the peer has deregistered the region or left the group"};
}
} // namespace

// Adds the places of the next `size` bytes of a read, and advances `at`.
// Returns false if fewer bytes were asked for, or `most` places are too few.
bool FrameReceiver::placesOf(
    const ActivePart& active,
    size_t size,
    ActivePart::Position& at,
    Places& places,
    size_t most) {
  const auto& pieces = active.part().pieces;
  while (size > 0) {
    if (at.piece == active.asked || places.size() == most) {
      return false;
    }
    const auto& piece = pieces[at.piece];
    places.push_back(
        {piece.local + at.offset, std::min(piece.size - at.offset, size)});
    size -= places.back().size();
    at.offset += places.back().size();
    if (at.offset == piece.size) {
      at = {at.piece + 1, 0};
    }
  }
  return true;
}

ActivePart* FrameReceiver::continued(
    const wire::GetData& data,
    size_t size,
    Places& places) {
  auto* const active = parts_.find(data.id);
  if (active == nullptr || active->state != ActivePart::State::kFetching) {
    return nullptr;
  }
  const bool fits = data.offset == active->arrived &&
      placesOf(*active, size, active->at, places);
  if (!fits) {
    owner_.end(
        data.id,
        Status(
            ErrorCode::kTransportFailed,
            "the peer sends bytes that do not continue the read, at byte " +
                std::to_string(data.offset)));
    return nullptr;
  }
  active->arrived += size;
  return active;
}

Placement FrameReceiver::placementOf(const wire::GetData& data, size_t size)
    const {
  const auto* const active = parts_.find(data.id);
  if (active == nullptr || active->state != ActivePart::State::kFetching ||
      data.offset != active->arrived ||
      active->part().local->view().onDevice()) {
    return {};
  }
  Placement placement;
  auto at = active->at;
  return placesOf(*active, size, at, placement.places, kMostPlaces)
      ? placement
      : Placement{};
}

void FrameReceiver::onPlacedData(
    const wire::GetData& data,
    size_t size,
    Fault fault) {
  Places places;
  const auto* const active = continued(data, size, places);
  if (active != nullptr) {
    arrived(data.id, *active, fault);
  }
}

void FrameReceiver::arrived(
    uint64_t id,
    const ActivePart& active,
    Fault fault) {
  if (fault != Fault::kNone) {
    owner_.end(id, namingMemory(active, statusOf({true, fault}, false)));
  } else if (active.at.piece == active.part().pieces.size()) {
    owner_.end(id, {});
  }
}

void FrameReceiver::onGetData(const wire::GetData& data, ByteSpan payload) {
  Places places;
  const auto* const active = continued(data, payload.size(), places);
  if (active == nullptr) {
    return;
  }
  const auto& local = *active->part().local;
  if (const auto view = local.view(); view.onDevice()) {
    gpus_.uploads().start( // the transfer ends after all copies
        *local.accelerator(),
        view.device,
        payload,
        places,
        completions_.userOf(active->transfer));
    arrived(data.id, *active, Fault::kNone);
  } else {
    arrived(data.id, *active, scatterGuarded(payload, places));
  }
}

void FrameReceiver::onPutAck(const wire::PutAck& ack) {
  auto* const active = parts_.find(ack.id);
  if (active == nullptr || !active->inFrames()) {
    return; // the part was given up
  }
  const bool good = ack.status == FinishStatus::kOk &&
      active->state == ActivePart::State::kPutting && active->allSent();
  owner_.end(ack.id, good ? Status() : namingMemory(*active, refused(ack)));
}

} // namespace dlslime
