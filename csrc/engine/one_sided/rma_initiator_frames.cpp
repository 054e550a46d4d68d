#include <algorithm>
#include <cstring>

#include "base/memory/guarded_copy.h"
#include "engine/one_sided/rma_initiator.h"

// Transfers in messages, where the route can't move them.

namespace dlslime {

namespace {
// What its owner says of the memory.
Status refused(FinishStatus status, uint16_t fault) {
  const bool unwritable = status == FinishStatus::kUnwritable;
  if (unwritable || status == FinishStatus::kUnreadable) {
    const auto told = copyFaultOf(codeOf({false, static_cast<Fault>(fault)}));
    return statusOf(told, unwritable);
  }
  if (status == FinishStatus::kForReading) {
    return {ErrorCode::kPeerFailed, "the peer says that it is for reading"};
  }
  return {
      ErrorCode::kPeerFailed,
      status == FinishStatus::kFailed
          ? "the peer's GPU could not copy it; its log says why"
          : "the peer could not serve it (status " +
              std::to_string(static_cast<int>(status)) +
              "): it has deregistered the memory or left the group"};
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
      continue; // the others in turn
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

void RmaInitiator::describe(uint64_t id, const Active& active) {
  header_ = {};
  header_.group = active.target.group;
  header_.source = active.target.source;
  header_.id = id;
  header_.offset = partOf(active).remote->id;
}

bool RmaInitiator::sendFrame(uint64_t id) {
  auto& active = *active_.find(id);
  if (gathers(active)) {
    return gatherPut(id, active);
  }
  if (framed_ == 0) {
    describe(id, active);
    if (active.state == State::kFetching) {
      fillFetch(active);
    } else if (const auto fault = fillPut(active); fault != Fault::kNone) {
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

void RmaInitiator::fillFetch(Active& active) {
  const auto& part = partOf(active);
  const size_t most =
      std::min(kMostPieceBytes, connection_->maxPayload()) / sizeof(FramePiece);
  const size_t count = std::min(most, part.pieces.size() - active.asked);
  frame_.resize(count * sizeof(FramePiece));
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& piece = part.pieces[active.asked + i];
    const FramePiece entry{piece.remote - part.remote->address, piece.size};
    std::memcpy(frame_.data() + i * sizeof(entry), &entry, sizeof(entry));
    bytes += piece.size;
  }
  header_.address = active.askedBytes;
  active.asked += count;
  active.askedBytes += bytes;
  header_.type = MessageType::kGetRequest;
}

// What there is in pinned memory of a write from a GPU.
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

// False: a GPU has yet to copy them, or could not, and then it has ended.
bool RmaInitiator::hasBytes(uint64_t id) {
  auto& active = *active_.find(id);
  if (!active.staged || !fromGpu(active, 1).empty()) {
    return true;
  }
  if (active.staged->failed()) {
    end(id, Status(ErrorCode::kUnavailable, "its memory can't be read"));
    return false;
  }
  takeTurn(id, active);
  return false;
}

// Goes on through the pieces, for so many bytes of a frame, with `ready` of
// them and so many pieces its content at most.
RmaInitiator::Cut
RmaInitiator::cut(Active& active, size_t most, size_t ready, size_t pieces) {
  const auto& part = partOf(active);
  Cut cut;
  const size_t count = std::min(part.pieces.size() - active.at.piece, pieces);
  cut.entries.reserve(count); // or what is cut off would be lost
  cut.sources.reserve(count);
  while (active.at.piece < part.pieces.size() && cut.bytes < ready &&
         cut.entries.size() < count &&
         cut.frameBytes() + sizeof(FramePiece) < most) {
    const auto& piece = part.pieces[active.at.piece];
    const size_t size = std::min(
        {piece.size - active.at.offset,
         most - cut.frameBytes() - sizeof(FramePiece),
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

Fault RmaInitiator::fillPut(Active& active) {
  const size_t most = std::min(kMostPieceBytes, connection_->maxPayload());
  auto staged = active.staged ? fromGpu(active, most) : ByteSpan{};
  frame_.reserve(most); // as above
  const auto frame =
      cut(active,
          most,
          active.staged ? staged.size() : most,
          most / sizeof(FramePiece));
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
  describePut(active, frame);
  return Fault::kNone;
}

void RmaInitiator::describePut(const Active& active, const Cut& frame) {
  header_.type = MessageType::kPut;
  header_.length = frame.entries.size();
  header_.slot = active.at.piece == partOf(active).pieces.size() ? 1 : 0;
}

// Whether the connection is to read the next bytes of a write itself.
bool RmaInitiator::gathers(const Active& active) const {
  const auto& pieces = partOf(active).pieces;
  return active.state == State::kPutting && !active.staged && framed_ == 0 &&
      connection_->gatherer() != nullptr &&
      pieces[active.at.piece].size - active.at.offset >= kLeastGathered;
}

// As sendFrame().
bool RmaInitiator::gatherPut(uint64_t id, Active& active) {
  const size_t most = connection_->maxPayload();
  Cut frame;
  describe(id, active);
  const auto gathered = out_.sendGathered(header_, most, [&] {
    std::vector<ByteSpan> all;
    all.reserve(kMostPlaces); // or what is cut off would be lost
    frame = cut(active, most, most, kMostPlaces - 1);
    describePut(active, frame);
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

// Where the next so many bytes of a read belong. False: not so many were asked
// for.
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
    const MessageHeader& header,
    size_t size,
    Places& places) {
  auto* const active = active_.find(header.id);
  if (active == nullptr || active->state != State::kFetching) {
    return nullptr;
  }
  const bool fits = header.offset == active->arrived &&
      placesOf(*active, size, active->at, places);
  if (!fits) {
    end(header.id,
        Status(
            ErrorCode::kTransportFailed,
            "the peer sends what does not continue the read, at byte " +
                std::to_string(header.offset)));
    return nullptr;
  }
  active->arrived += size;
  return active;
}

Placement RmaInitiator::placementOf(const MessageHeader& header) {
  const auto* const active = active_.find(header.id);
  if (active == nullptr || active->state != State::kFetching ||
      header.offset != active->arrived ||
      partOf(*active).local->view().onDevice()) {
    return {};
  }
  Placement placement;
  auto at = active->at;
  return placesOf(
             *active, header.payloadSize, at, placement.places, kMostPlaces)
      ? placement
      : Placement{};
}

void RmaInitiator::onPlacedChunk(const MessageHeader& header, Fault fault) {
  Places places;
  const auto* const active = continued(header, header.payloadSize, places);
  if (active != nullptr) {
    arrived(header.id, *active, fault);
  }
}

void RmaInitiator::arrived(uint64_t id, const Active& active, Fault fault) {
  if (fault != Fault::kNone) {
    end(id, faulty(active, statusOf({true, fault}, false)));
  } else if (active.at.piece == partOf(active).pieces.size()) {
    end(id, {});
  }
}

void RmaInitiator::onChunk(const MessageHeader& header, ByteSpan payload) {
  Places places;
  const auto* const active = continued(header, payload.size(), places);
  if (active == nullptr) {
    return;
  }
  const auto& local = *partOf(*active).local;
  if (const auto view = local.view(); view.onDevice()) {
    gpus_.uploads().start( // the transfer ends when all have arrived
        *local.accelerator(),
        view.device,
        payload,
        places,
        completions_.userOf(active->transfer));
    arrived(header.id, *active, Fault::kNone);
  } else {
    arrived(header.id, *active, scatterGuarded(payload, places));
  }
}

void RmaInitiator::onSettled(const MessageHeader& header) {
  auto* const active = active_.find(header.id);
  const bool frames = active != nullptr &&
      (active->state == State::kFetching || active->state == State::kPutting);
  if (!frames) {
    return; // given up
  }
  const bool good = header.status == FinishStatus::kOk &&
      active->state == State::kPutting && allSent(*active);
  end(header.id,
      good ? Status() : faulty(*active, refused(header.status, header.slot)));
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
