#include "engine/one_sided/frame_sender.h"

#include <algorithm>
#include <cstring>

#include "base/memory/guarded_copy.h"

namespace dlslime {

void FrameSender::remove(uint64_t id) {
  std::erase(sending_, id);
  framed_ = framed_ == id ? 0 : framed_;
}

bool FrameSender::flush() {
  bool any = false;
  for (int i = 0; i < kPiecesPerFlush && !sending_.empty(); ++i) {
    const auto id = framed_ != 0 ? framed_ : sending_.front();
    if (!route_.usable()) {
      return any;
    }
    if (framed_ == 0 && !hasBytes(id)) {
      continue; // not ready: the next part takes a turn
    }
    if (!sendFrame(id)) {
      return any;
    }
    any = true;
    const auto* const active = parts_.find(id);
    if (active != nullptr && !active->allSent()) {
      takeTurn(id, *active);
    } else {
      std::erase(sending_, id);
    }
  }
  return any;
}

void FrameSender::takeTurn(uint64_t id, const ActivePart& active) {
  std::erase(sending_, id);
  const bool staged = active.staged != nullptr;
  sending_.insert(StagedSource::nextTurn(sending_, staged), id);
}

bool FrameSender::sendFrame(uint64_t id) {
  auto& active = *parts_.find(id);
  if (gathers(active)) {
    return gatherPut(id, active);
  }
  if (framed_ == 0) {
    if (active.state == ActivePart::State::kFetching) {
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

void FrameSender::fillRequest(uint64_t id, ActivePart& active) {
  const auto& part = active.part();
  const size_t most =
      std::min(kMostPieceBytes, route_.connection->maxPayload()) /
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
ByteSpan FrameSender::fromGpu(ActivePart& active, size_t most) {
  const auto& pieces = active.part().pieces;
  active.staged->fetchAhead([&](size_t room, auto& next) {
    auto& at = active.toStage;
    while (room > 0 && at.piece < pieces.size()) {
      const auto& piece = pieces[at.piece];
      const auto size = std::min(piece.size - at.offset, room);
      next.push_back({piece.local + at.offset, size});
      room -= size;
      at.offset += size;
      if (at.offset == piece.size) {
        at = {at.piece + 1, 0};
      }
    }
  });
  return active.staged->front(most);
}

// Returns false if a GPU has not copied the next bytes yet, or could not; the
// part ends if the GPU could not.
bool FrameSender::hasBytes(uint64_t id) {
  auto& active = *parts_.find(id);
  if (!active.staged || !fromGpu(active, 1).empty()) {
    return true;
  }
  if (active.staged->failed()) {
    owner_.end(id, Status(ErrorCode::kUnavailable, "the memory can't be read"));
    return false;
  }
  takeTurn(id, active);
  return false;
}

// Cuts the next frame from the pieces and advances `at`: at most `most` bytes
// of frame, `ready` bytes of content, and `pieces` entries.
FrameSender::Cut
FrameSender::cut(ActivePart& active, size_t most, size_t ready, size_t pieces) {
  const auto& part = active.part();
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

Fault FrameSender::fillPut(uint64_t id, ActivePart& active) {
  const size_t most =
      std::min(kMostPieceBytes, route_.connection->maxPayload());
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
FrameSender::headerOf(uint64_t id, const ActivePart& active, const Cut& frame) {
  const auto& part = active.part();
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
bool FrameSender::gathers(const ActivePart& active) const {
  const auto& pieces = active.part().pieces;
  return active.state == ActivePart::State::kPutting && !active.staged &&
      framed_ == 0 && route_.connection->gatherer() != nullptr &&
      pieces[active.at.piece].size - active.at.offset >= kLeastGathered;
}

// Sends a Put with bytes read by the connection. Returns false for want of
// room, as sendFrame() does.
bool FrameSender::gatherPut(uint64_t id, ActivePart& active) {
  const size_t most = route_.connection->maxPayload();
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

void FrameSender::endUnreadable(
    uint64_t id,
    const ActivePart& active,
    Fault fault) {
  owner_.end(id, inWords([&] {
               return namingMemory(active, statusOf({true, fault}, true));
             }));
}

} // namespace dlslime
