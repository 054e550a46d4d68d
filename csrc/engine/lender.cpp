#include "engine/lender.h"

#include <algorithm>
#include <cstring>

namespace dlslime {

namespace {
// What a peer may ask for before it takes any of it: 128 MiB of our memory, at
// 16 bytes a piece.
constexpr size_t kMostPieces = size_t{8} << 20;

FramePiece pieceAt(ByteSpan payload, size_t index) {
  FramePiece piece; // read once: the peer may write the payload any time
  std::memcpy(&piece, payload.data() + index * sizeof(piece), sizeof(piece));
  return piece;
}
} // namespace

bool Lender::inside(const Region& region, const FramePiece& piece) {
  const uint64_t size = region.view().size;
  return piece.size <= size && piece.offset <= size - piece.size;
}

RegionPtr Lender::lent(uint64_t id) const {
  const auto found = lent_.find(id);
  return found == lent_.end() ? nullptr : found->second;
}

void Lender::onResolve(const MessageHeader& header) {
  const auto region = regions_.find(header.id, header.address);
  if (!region) {
    answer(MessageType::kResolved, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  auto* const registrar =
      connection_ != nullptr ? connection_->registrar() : nullptr;
  if (registrar != nullptr && region->enrolled(registrar) == nullptr) {
    enrolling_[header.id] = region;
    regions_.enrollLater(region, registrar);
    return;
  }
  lend(region);
}

void Lender::lend(const RegionPtr& region) {
  if (connection_ == nullptr) {
    return; // it asks again
  }
  const auto& handle = region->handle();
  if (lent_.try_emplace(handle.id, region).second) {
    ++region->lent;
  }
  auto* const registrar = connection_->registrar();
  MessageHeader resolved;
  resolved.type = MessageType::kResolved;
  resolved.id = handle.id;
  resolved.length = handle.size;
  setRemote(
      resolved,
      connection_->reach(
          region->view(),
          registrar != nullptr ? region->enrolled(registrar) : nullptr));
  resolved.address = handle.address;
  out_.sendControl(resolved);
}

// Without the NICs' help it is served in messages.
void Lender::onEnrolled(const RegionPtr& region, const Status& /*status*/) {
  if (enrolling_.erase(region->handle().id) == 0) {
    return;
  }
  region->closing ? answer(
                        MessageType::kResolved,
                        region->handle().id,
                        FinishStatus::kUnknownMemory)
                  : lend(region);
}

void Lender::answer(MessageType type, uint64_t id, FinishStatus status) {
  MessageHeader answer;
  answer.type = type;
  answer.id = id;
  answer.status = status;
  out_.sendControl(answer);
}

void Lender::refuse(const MessageHeader& header) {
  if (header.type == MessageType::kResolve) {
    answer(MessageType::kResolved, header.id, FinishStatus::kGroupGone);
  } else {
    answer(MessageType::kSettled, header.id, FinishStatus::kGroupGone);
  }
}

void Lender::onFetch(const MessageHeader& header, ByteSpan payload) {
  const auto region = lent(header.offset);
  if (!region) {
    answer(MessageType::kSettled, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  auto stream =
      std::find_if(streams_.begin(), streams_.end(), [&](const Stream& entry) {
        return entry.id == header.id;
      });
  if (stream == streams_.end()) {
    streams_.push_back({header.id, region, {}, header.address});
    stream = std::prev(streams_.end());
  }
  size_t asked = payload.size() / sizeof(FramePiece);
  for (const auto& entry : streams_) {
    asked += entry.pieces.size();
  }
  const bool tooMany = asked > kMostPieces;
  for (size_t i = 0; i < payload.size() / sizeof(FramePiece); ++i) {
    const auto piece = pieceAt(payload, i);
    if (tooMany || !inside(*stream->region, piece)) {
      if (stream == streams_.begin()) {
        frame_.clear();
      }
      streams_.erase(stream);
      answer(MessageType::kSettled, header.id, FinishStatus::kOutOfRange);
      return;
    }
    stream->pieces.push_back(piece);
  }
  flush();
}

void Lender::onPut(const MessageHeader& header, ByteSpan payload) {
  const auto region = lent(header.offset);
  if (!region) {
    answer(MessageType::kSettled, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  const uint64_t count = header.length;
  if (count > payload.size() / sizeof(FramePiece)) {
    answer(MessageType::kSettled, header.id, FinishStatus::kOutOfRange);
    return;
  }
  auto bytes = payload.subspan(count * sizeof(FramePiece));
  for (size_t i = 0; i < count; ++i) {
    const auto piece = pieceAt(payload, i);
    if (!inside(*region, piece) || piece.size > bytes.size()) {
      answer(MessageType::kSettled, header.id, FinishStatus::kOutOfRange);
      return;
    }
    copyBytes(region->view().data + piece.offset, bytes.data(), piece.size);
    bytes = bytes.subspan(piece.size);
  }
  if (header.slot != 0) {
    answer(MessageType::kSettled, header.id, FinishStatus::kOk);
  }
}

bool Lender::flush() {
  bool any = false;
  for (int i = 0; i < kPiecesPerFlush && !streams_.empty(); ++i) {
    if (connection_ == nullptr || !sendChunk(streams_.front())) {
      return any;
    }
    any = true;
    Stream stream = std::move(streams_.front());
    streams_.pop_front();
    if (!stream.pieces.empty()) {
      streams_.push_back(std::move(stream)); // the others in turn
    }
  }
  return any;
}

bool Lender::sendChunk(Stream& stream) {
  if (frame_.empty()) {
    const size_t most = std::min(kMostPieceBytes, connection_->maxPayload());
    while (!stream.pieces.empty() && frame_.size() < most) {
      auto& piece = stream.pieces.front();
      const size_t size = std::min<size_t>(piece.size, most - frame_.size());
      const auto* const from = stream.region->view().data + piece.offset;
      frame_.insert(frame_.end(), from, from + size);
      piece.offset += size;
      piece.size -= size;
      if (piece.size == 0) {
        stream.pieces.pop_front();
      }
    }
  }
  MessageHeader chunk;
  chunk.type = MessageType::kChunk;
  chunk.id = stream.id;
  chunk.offset = stream.position;
  if (!out_.sendNow(chunk, frame_)) {
    return false;
  }
  stream.position += frame_.size();
  frame_.clear();
  return true;
}

void Lender::recall(const Region& region) {
  const auto id = region.handle().id;
  if (!lent_.contains(id)) {
    return;
  }
  MessageHeader forget;
  forget.type = MessageType::kForget;
  forget.id = id;
  out_.sendControl(forget);
}

void Lender::onForgotten(const MessageHeader& header) {
  const auto found = lent_.find(header.id);
  if (found == lent_.end()) {
    return;
  }
  // What it has asked for, and given up since.
  const auto* const first = streams_.empty() ? nullptr : &streams_.front();
  if (first != nullptr && first->region == found->second) {
    frame_.clear();
  }
  std::erase_if(streams_, [&](const Stream& stream) {
    return stream.region == found->second;
  });
  --found->second->lent;
  lent_.erase(found);
}

void Lender::fail() {
  for (const auto& [id, region] : lent_) {
    --region->lent;
  }
  lent_.clear();
  enrolling_.clear();
  streams_.clear();
  frame_.clear();
}

} // namespace dlslime
