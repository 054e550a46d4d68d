#include <algorithm>
#include <cstring>

#include "engine/transfers.h"

// Transfers in messages, where the route can't move them.

namespace dlslime {

bool Transfers::flush() {
  bool any = false;
  for (int i = 0; i < kPiecesPerFlush && !sending_.empty(); ++i) {
    const auto id = framed_ != 0 ? framed_ : sending_.front();
    if (severed_ || connection_ == nullptr || !sendFrame(id)) {
      return any;
    }
    any = true;
    std::erase(sending_, id);
    if (!allSent(*active_.find(id))) {
      sending_.push_back(id);
    }
  }
  return any;
}

bool Transfers::allSent(const Active& active) const {
  const auto& pieces = partOf(active).pieces;
  return active.state == State::kFetching ? active.asked == pieces.size()
                                          : active.piece == pieces.size();
}

bool Transfers::sendFrame(uint64_t id) {
  auto& active = *active_.find(id);
  if (framed_ == 0) {
    const auto& part = partOf(active);
    header_ = {};
    header_.group = active.target.group;
    header_.source = active.target.source;
    header_.id = id;
    header_.offset = part.remote->id;
    active.state == State::kFetching ? fillFetch(active) : fillPut(active);
    framed_ = id;
  }
  if (!out_.sendNow(header_, frame_)) {
    return false;
  }
  framed_ = 0;
  return true;
}

void Transfers::fillFetch(Active& active) {
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
  header_.type = MessageType::kFetch;
}

void Transfers::fillPut(Active& active) {
  const auto& part = partOf(active);
  const size_t most = std::min(kMostPieceBytes, connection_->maxPayload());
  std::vector<FramePiece> entries;
  std::vector<const std::byte*> sources;
  size_t bytes = 0;
  while (active.piece < part.pieces.size() &&
         bytes + sizeof(FramePiece) < most) {
    const auto& piece = part.pieces[active.piece];
    const size_t size =
        std::min(piece.size - active.offset, most - bytes - sizeof(FramePiece));
    entries.push_back(
        {piece.remote - part.remote->address + active.offset, size});
    sources.push_back(piece.local + active.offset);
    bytes += sizeof(FramePiece) + size;
    active.offset += size;
    if (active.offset == piece.size) {
      ++active.piece;
      active.offset = 0;
    }
  }
  frame_.resize(bytes);
  auto* at = frame_.data();
  copyBytes(at, entries.data(), entries.size() * sizeof(FramePiece));
  at += entries.size() * sizeof(FramePiece);
  for (size_t i = 0; i < entries.size(); ++i) {
    copyBytes(at, sources[i], entries[i].size);
    at += entries[i].size;
  }
  header_.type = MessageType::kPut;
  header_.length = entries.size();
  header_.slot = active.piece == part.pieces.size() ? 1 : 0;
}

void Transfers::onChunk(const MessageHeader& header, ByteSpan payload) {
  auto* const active = active_.find(header.id);
  if (active == nullptr || active->state != State::kFetching) {
    return; // given up
  }
  const auto& pieces = partOf(*active).pieces;
  bool fits = header.offset == active->arrived;
  active->arrived += payload.size();
  while (fits && !payload.empty()) {
    fits = active->piece < active->asked;
    if (!fits) {
      break;
    }
    const auto& piece = pieces[active->piece];
    const size_t size = std::min(piece.size - active->offset, payload.size());
    copyBytes(piece.local + active->offset, payload.data(), size);
    payload = payload.subspan(size);
    active->offset += size;
    if (active->offset == piece.size) {
      ++active->piece;
      active->offset = 0;
    }
  }
  if (!fits) {
    end(header.id,
        Status(
            ErrorCode::kTransportFailed,
            "the peer sends what does not continue the read, at byte " +
                std::to_string(header.offset)));
  } else if (active->piece == pieces.size()) {
    end(header.id, {});
  }
}

void Transfers::onSettled(const MessageHeader& header) {
  auto* const active = active_.find(header.id);
  const bool frames = active != nullptr &&
      (active->state == State::kFetching || active->state == State::kPutting);
  if (!frames) {
    return; // given up
  }
  const bool good = header.status == FinishStatus::kOk &&
      active->state == State::kPutting && allSent(*active);
  end(header.id,
      good ? Status()
           : Status(
                 ErrorCode::kPeerFailed,
                 "the peer could not serve it (status " +
                     std::to_string(static_cast<int>(header.status)) +
                     "): it has deregistered the memory or left the group"));
}

} // namespace dlslime
