#include <algorithm>
#include <cstring>

#include "base/memory/guarded_copy.h"
#include "engine/one_sided/frame_pieces.h"
#include "engine/one_sided/rma_target.h"

// What peers read in messages, where the route can't.

namespace dlslime {

namespace {
// What a peer may ask for before it takes any of it: 128 MiB of our memory, at
// 16 bytes a piece.
constexpr size_t kMostPieces = size_t{8} << 20;
constexpr size_t kPiecesOfStream = 64; // what its bookkeeping is as large as
} // namespace

void RmaTarget::onFetch(const MessageHeader& header, ByteSpan payload) {
  const auto region = lent(header.offset);
  if (!region) {
    answer(MessageType::kPutAck, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  if (!addPieces(streamOf(header, region), payload)) {
    drop(header.id);
    answer(MessageType::kPutAck, header.id, FinishStatus::kOutOfRange);
    return;
  }
  flush();
}

RmaTarget::Stream& RmaTarget::streamOf(
    const MessageHeader& header,
    const RegionPtr& region) {
  const auto found = streams_.find(header.id);
  if (found != streams_.end()) {
    return found->second;
  }
  std::list<uint64_t> turn{header.id};
  ofRegions_.emplace(region->handle().id, header.id);
  auto& stream =
      streams_.emplace(header.id, begin(header, region)).first->second;
  stream.turn = turn.begin();
  turns_.splice(turns_.end(), turn);
  return stream;
}

// False: it asks for too much, or for what is not there.
bool RmaTarget::addPieces(Stream& stream, ByteSpan payload) {
  const size_t count = payload.size() / sizeof(FramePiece);
  if (asked_ + count + streams_.size() * kPiecesOfStream > kMostPieces) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    const auto piece = pieceAt(payload, i);
    if (!inside(*stream.region, piece)) {
      return false;
    }
    stream.pieces.push_back(piece);
    ++asked_;
  }
  return true;
}

void RmaTarget::drop(uint64_t id) {
  const auto stream = streams_.find(id);
  ofRegions_.erase({stream->second.region->handle().id, id});
  const auto turn = stream->second.turn;
  if (turn == turns_.begin()) {
    frame_.clear();
  }
  turns_.erase(turn);
  asked_ -= stream->second.pieces.size();
  streams_.erase(stream);
}

RmaTarget::Stream RmaTarget::begin(
    const MessageHeader& header,
    const RegionPtr& region) {
  Stream stream{region, {}, header.address};
  if (auto* const gpus = region->accelerator()) {
    stream.staged = std::make_unique<StagedSource>(
        *gpus, region->view().device, userOf(region, [](bool) {}));
  }
  return stream;
}

bool RmaTarget::flush() {
  bool any = connection_ != nullptr && lendWaiting();
  any |= connection_ != nullptr && answerArrived();
  for (int i = 0; i < kPiecesPerFlush && !turns_.empty(); ++i) {
    if (connection_ == nullptr) {
      return any;
    }
    const auto id = turns_.front();
    auto& stream = streams_.at(id);
    const bool ready = hasBytes(stream);
    const bool failed = !ready && stream.staged->failed();
    if (failed) {
      answer(MessageType::kPutAck, id, FinishStatus::kFailed);
    } else if (ready && !sendChunk(id, stream)) {
      return any;
    }
    any |= ready;
    if (failed || stream.over()) {
      drop(id);
    } else { // the others in turn
      std::list<uint64_t> turn;
      turn.splice(turn.end(), turns_, turns_.begin());
      const bool staged = stream.staged != nullptr;
      turns_.splice(StagedSource::nextTurn(turns_, staged), turn);
    }
  }
  return any;
}

// The next bytes of a stream, which are in one piece.
ByteSpan RmaTarget::take(Stream& stream, size_t most) {
  auto& piece = stream.pieces.front();
  const ByteSpan bytes(
      stream.region->view().data + piece.offset,
      std::min<size_t>(piece.size, most));
  piece.offset += bytes.size();
  piece.size -= bytes.size();
  if (piece.size == 0) {
    stream.pieces.pop_front();
    --asked_;
  }
  return bytes;
}

// False: a GPU has yet to copy them, or could not.
bool RmaTarget::hasBytes(Stream& stream) {
  if (!stream.staged) {
    return true;
  }
  stream.staged->fetchAhead([&](size_t room, auto& next) {
    while (room > 0 && !stream.pieces.empty()) {
      next.push_back(take(stream, room));
      room -= next.back().size();
    }
  });
  return !stream.staged->front(1).empty();
}

// The bytes of the next frame, if processors have them.
Fault RmaTarget::fillFrame(Stream& stream, size_t most) {
  std::vector<ByteSpan> places;
  const size_t before = frame_.size(); // it has waited for room
  size_t size = before;
  while (!stream.staged && !stream.pieces.empty() && size < most) {
    places.push_back(take(stream, most - size));
    size += places.back().size();
  }
  frame_.resize(size);
  return gatherGuarded(places, frame_.data() + before);
}

void RmaTarget::endUnreadable(uint64_t id, Stream& stream, Fault fault) {
  answer(MessageType::kPutAck, id, FinishStatus::kUnreadable, fault);
  asked_ -= stream.pieces.size();
  stream.pieces.clear();
  frame_.clear();
}

// Whether the connection is to read the next bytes itself: few are cheaper to
// copy, and go out with others.
bool RmaTarget::gathers(const Stream& stream) const {
  if (stream.staged || !frame_.empty() || connection_->gatherer() == nullptr) {
    return false;
  }
  size_t size = 0;
  for (size_t i = 0; i < std::min(kMostPlaces, stream.pieces.size()); ++i) {
    size += stream.pieces[i].size;
    if (size >= kLeastGathered) {
      return true;
    }
  }
  return false;
}

// As sendChunk().
bool RmaTarget::gatherChunk(uint64_t id, Stream& stream) {
  const size_t most = connection_->maxPayload();
  MessageHeader chunk;
  chunk.type = MessageType::kGetData;
  chunk.id = id;
  chunk.offset = stream.position;
  const auto gathered = out_.sendGathered(chunk, most, [&] {
    std::vector<ByteSpan> places;
    places.reserve(std::min(kMostPlaces, stream.pieces.size()));
    size_t size = 0;
    while (!stream.pieces.empty() && size < most &&
           places.size() < kMostPlaces) {
      places.push_back(take(stream, most - size));
      size += places.back().size();
    }
    stream.position += size;
    return places;
  });
  if (gathered.fault != Fault::kNone) {
    endUnreadable(id, stream, gathered.fault);
  }
  return gathered.sent;
}

bool RmaTarget::sendChunk(uint64_t id, Stream& stream) {
  if (gathers(stream)) {
    return gatherChunk(id, stream);
  }
  const size_t most = std::min(kMostPieceBytes, connection_->maxPayload());
  if (const auto fault = fillFrame(stream, most); fault != Fault::kNone) {
    endUnreadable(id, stream, fault);
    return true;
  }
  const auto payload =
      stream.staged ? stream.staged->front(most) : ByteSpan(frame_);
  MessageHeader chunk;
  chunk.type = MessageType::kGetData;
  chunk.id = id;
  chunk.offset = stream.position;
  if (!out_.sendNow(chunk, payload)) {
    return false;
  }
  stream.position += payload.size();
  if (stream.staged) {
    stream.staged->pop(payload.size());
  }
  frame_.clear();
  return true;
}

} // namespace dlslime
