#include <algorithm>
#include <cstring>

#include "base/memory/guarded_copy.h"
#include "engine/one_sided/rma_initiator.h"

// Transfers in messages, used where the route can't move the bytes.

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

bool RmaInitiator::flush() {
  bool any = false;
  for (int i = 0; i < kPiecesPerFlush && !sending_.empty(); ++i) {
    const auto id = framed_ != 0 ? framed_ : sending_.front();
    if (severed_ || connection_ == nullptr) {
      return any;
    }
    if (framed_ == 0 && !hasBytes(id)) {
      continue; // not ready: the next part takes a turn
    }
    if (!sendFrame(id)) {
      return any;
    }
    any = true;
    const auto* const active = active_.find(id);
    if (active != nullptr && !allSent(*active)) {
      takeTurn(id, *active);
    } else {
      std::erase(sending_, id);
    }
  }
  return any;
}

void RmaInitiator::takeTurn(uint64_t id, const Active& active) {
  std::erase(sending_, id);
  const bool staged = active.staged != nullptr;
  sending_.insert(StagedSource::nextTurn(sending_, staged), id);
}

bool RmaInitiator::allSent(const Active& active) const {
  const auto& pieces = partOf(active).pieces;
  return active.state == State::kFetching ? active.asked == pieces.size()
                                          : active.at.piece == pieces.size();
}

bool RmaInitiator::sendFrame(uint64_t id) {
  auto& active = *active_.find(id);
  if (gathers(active)) {
    return gatherPut(id, active);
  }
  if (framed_ == 0) {
    if (active.state == State::kFetching) {
      fillRequest(id, active);
    } else if (const auto fault = fillPut(id, active); fault != Fault::kNone) {
      endUnreadable(id, active, fault);
      return true;
    }
    framed_ = id;
  }
  if (!out_.sendNow(header_, frame_)) {
    return false;
  }
  framed_ = 0;
  return true;
}

void RmaInitiator::fillRequest(uint64_t id, Active& active) {
  const auto& part = partOf(active);
  const size_t most = std::min(kMostPieceBytes, connection_->maxPayload()) /
      sizeof(wire::FramePiece);
  const size_t count = std::min(most, part.pieces.size() - active.asked);
  frame_.resize(count * sizeof(wire::FramePiece));
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& piece = part.pieces[active.asked + i];
    const wire::FramePiece entry{
        piece.remote - part.remote->address, piece.size};
    std::memcpy(frame_.data() + i * sizeof(entry), &entry, sizeof(entry));
    bytes += piece.size;
  }
  const auto& target = active.target;
  header_ = wire::encode(wire::GetRequest{
      target.group, target.source, id, part.remote->id, active.askedBytes});
  active.asked += count;
  active.askedBytes += bytes;
}

// Returns up to `most` bytes of a write from a GPU that have come into pinned
// memory, and has more bytes copied.
ByteSpan RmaInitiator::fromGpu(Active& active, size_t most) {
  const auto& pieces = partOf(active).pieces;
  active.staged->fetchAhead([&](size_t room, auto& next) {
    while (room > 0 && active.nextPiece < pieces.size()) {
      const auto& piece = pieces[active.nextPiece];
      const auto size = std::min(piece.size - active.nextOffset, room);
      next.push_back({piece.local + active.nextOffset, size});
      room -= size;
      active.nextOffset += size;
      if (active.nextOffset == piece.size) {
        ++active.nextPiece;
        active.nextOffset = 0;
      }
    }
  });
  return active.staged->front(most);
}

// Returns false if a GPU has not copied the next bytes yet, or could not; the
// part ends if the GPU could not.
bool RmaInitiator::hasBytes(uint64_t id) {
  auto& active = *active_.find(id);
  if (!active.staged || !fromGpu(active, 1).empty()) {
    return true;
  }
  if (active.staged->failed()) {
    end(id, Status(ErrorCode::kUnavailable, "the memory can't be read"));
    return false;
  }
  takeTurn(id, active);
  return false;
}

// Cuts the next frame from the pieces and advances `at`: at most `most` bytes
// of frame, `ready` bytes of content, and `pieces` entries.
RmaInitiator::Cut
RmaInitiator::cut(Active& active, size_t most, size_t ready, size_t pieces) {
  const auto& part = partOf(active);
  Cut cut;
  const size_t count = std::min(part.pieces.size() - active.at.piece, pieces);
  // Reserved before `at` advances: an exception afterwards would lose the bytes
  // cut off.
  cut.entries.reserve(count);
  cut.sources.reserve(count);
  while (active.at.piece < part.pieces.size() && cut.bytes < ready &&
         cut.entries.size() < count &&
         cut.frameBytes() + sizeof(wire::FramePiece) < most) {
    const auto& piece = part.pieces[active.at.piece];
    const size_t size = std::min(
        {piece.size - active.at.offset,
         most - cut.frameBytes() - sizeof(wire::FramePiece),
         ready - cut.bytes});
    cut.entries.push_back(
        {piece.remote - part.remote->address + active.at.offset, size});
    cut.sources.push_back({piece.local + active.at.offset, size});
    cut.bytes += size;
    active.at.offset += size;
    if (active.at.offset == piece.size) {
      ++active.at.piece;
      active.at.offset = 0;
    }
  }
  return cut;
}

Fault RmaInitiator::fillPut(uint64_t id, Active& active) {
  const size_t most = std::min(kMostPieceBytes, connection_->maxPayload());
  auto staged = active.staged ? fromGpu(active, most) : ByteSpan{};
  frame_.reserve(most); // before cut(), so that nothing cut off is lost
  const auto frame =
      cut(active,
          most,
          active.staged ? staged.size() : most,
          most / sizeof(wire::FramePiece));
  frame_.resize(frame.frameBytes());
  auto* at = frame_.data();
  const auto entries = std::as_bytes(std::span(frame.entries));
  copyBytes(at, entries.data(), entries.size());
  at += entries.size();
  if (active.staged) {
    copyBytes(at, staged.data(), frame.bytes);
    active.staged->pop(frame.bytes);
  } else if (const auto fault = gatherGuarded(frame.sources, at);
             fault != Fault::kNone) {
    return fault;
  }
  header_ = headerOf(id, active, frame);
  return Fault::kNone;
}

MessageHeader
RmaInitiator::headerOf(uint64_t id, const Active& active, const Cut& frame) {
  const auto& part = partOf(active);
  return wire::encode(wire::Put{
      active.target.group,
      active.target.source,
      id,
      part.remote->id,
      frame.entries.size(),
      active.at.piece == part.pieces.size()});
}

// Returns whether the connection should read the next bytes of a write from the
// region.
bool RmaInitiator::gathers(const Active& active) const {
  const auto& pieces = partOf(active).pieces;
  return active.state == State::kPutting && !active.staged && framed_ == 0 &&
      connection_->gatherer() != nullptr &&
      pieces[active.at.piece].size - active.at.offset >= kLeastGathered;
}

// Sends a Put with bytes read by the connection. Returns false for want of
// room, as sendFrame() does.
bool RmaInitiator::gatherPut(uint64_t id, Active& active) {
  const size_t most = connection_->maxPayload();
  Cut frame;
  const auto gathered = out_.sendGathered(header_, most, [&] {
    std::vector<ByteSpan> all;
    all.reserve(kMostPlaces); // before cut(), so that nothing cut off is lost
    frame = cut(active, most, most, kMostPlaces - 1);
    header_ = headerOf(id, active, frame);
    all.push_back(std::as_bytes(std::span(frame.entries)));
    all.insert(all.end(), frame.sources.begin(), frame.sources.end());
    return all;
  });
  if (gathered.fault != Fault::kNone) {
    endUnreadable(id, active, gathered.fault);
  }
  return gathered.sent;
}

void RmaInitiator::endUnreadable(
    uint64_t id,
    const Active& active,
    Fault fault) {
  end(id,
      inWords([&] { return faulty(active, statusOf({true, fault}, true)); }));
}

// Adds the places of the next `size` bytes of a read, and advances `at`.
// Returns false if fewer bytes were asked for, or `most` places are too few.
bool RmaInitiator::placesOf(
    const Active& active,
    size_t size,
    Position& at,
    Places& places,
    size_t most) {
  const auto& pieces = partOf(active).pieces;
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

RmaInitiator::Active* RmaInitiator::continued(
    const wire::GetData& data,
    size_t size,
    Places& places) {
  auto* const active = active_.find(data.id);
  if (active == nullptr || active->state != State::kFetching) {
    return nullptr;
  }
  const bool fits = data.offset == active->arrived &&
      placesOf(*active, size, active->at, places);
  if (!fits) {
    end(data.id,
        Status(
            ErrorCode::kTransportFailed,
            "the peer sends bytes that do not continue the read, at byte " +
                std::to_string(data.offset)));
    return nullptr;
  }
  active->arrived += size;
  return active;
}

Placement RmaInitiator::placementOf(const wire::GetData& data, size_t size) {
  const auto* const active = active_.find(data.id);
  if (active == nullptr || active->state != State::kFetching ||
      data.offset != active->arrived ||
      partOf(*active).local->view().onDevice()) {
    return {};
  }
  Placement placement;
  auto at = active->at;
  return placesOf(*active, size, at, placement.places, kMostPlaces)
      ? placement
      : Placement{};
}

void RmaInitiator::onPlacedData(
    const wire::GetData& data,
    size_t size,
    Fault fault) {
  Places places;
  const auto* const active = continued(data, size, places);
  if (active != nullptr) {
    arrived(data.id, *active, fault);
  }
}

void RmaInitiator::arrived(uint64_t id, const Active& active, Fault fault) {
  if (fault != Fault::kNone) {
    end(id, faulty(active, statusOf({true, fault}, false)));
  } else if (active.at.piece == partOf(active).pieces.size()) {
    end(id, {});
  }
}

void RmaInitiator::onGetData(const wire::GetData& data, ByteSpan payload) {
  Places places;
  const auto* const active = continued(data, payload.size(), places);
  if (active == nullptr) {
    return;
  }
  const auto& local = *partOf(*active).local;
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

void RmaInitiator::onPutAck(const wire::PutAck& ack) {
  auto* const active = active_.find(ack.id);
  const bool frames = active != nullptr &&
      (active->state == State::kFetching || active->state == State::kPutting);
  if (!frames) {
    return; // the part was given up
  }
  const bool good = ack.status == FinishStatus::kOk &&
      active->state == State::kPutting && allSent(*active);
  end(ack.id, good ? Status() : faulty(*active, refused(ack)));
}

Status RmaInitiator::faulty(const Active& active, const Status& fault) {
  const auto& part = partOf(active);
  switch (fault.code()) {
    case ErrorCode::kOwnFault:
      return {
          ErrorCode::kTransportFailed,
          "the local " + part.local->describe() + " " + fault.message()};
    case ErrorCode::kPeerFault:
      return {
          ErrorCode::kTransportFailed,
          part.remote->describe() + " " + fault.message()};
    default:
      return fault;
  }
}

} // namespace dlslime
