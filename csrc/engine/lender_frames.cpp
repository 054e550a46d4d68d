#include <algorithm>
#include <cstring>

#include "core/guarded_copy.h"
#include "core/log.h"
#include "engine/lender.h"

// What peers read and write in messages, where the route can't.

namespace dlslime {

namespace {
// What a peer may ask for before it takes any of it: 128 MiB of our memory, at
// 16 bytes a piece.
constexpr size_t kMostPieces = size_t{8} << 20;
constexpr size_t kPiecesOfStream = 64; // what its bookkeeping is as large as
// Writes that have failed, or go to a GPU, and whose end has not come.
constexpr size_t kMostArriving = 65536;

FramePiece pieceAt(ByteSpan payload, size_t index) {
  FramePiece piece; // read once: the peer may write the payload any time
  std::memcpy(&piece, payload.data() + index * sizeof(piece), sizeof(piece));
  return piece;
}

bool inside(const Region& region, const FramePiece& piece) {
  const uint64_t size = region.view().size;
  return piece.size <= size && piece.offset <= size - piece.size;
}

// For copies between a GPU and pinned memory: the region is lent meanwhile.
CopyUser userOf(const RegionPtr& region, std::function<void(bool good)> ended) {
  return {
      [region] { ++region->lent; },
      [region, ended = std::move(ended)](const Status& status) {
        --region->lent;
        ended(status.ok());
        if (!status.ok()) {
          logError(
              region->describe() +
              " could not serve a peer: " + status.message());
        }
      }};
}
} // namespace

void Lender::onFetch(const MessageHeader& header, ByteSpan payload) {
  const auto region = lent(header.offset);
  if (!region) {
    answer(MessageType::kSettled, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  if (!addPieces(streamOf(header, region), payload)) {
    drop(header.id);
    answer(MessageType::kSettled, header.id, FinishStatus::kOutOfRange);
    return;
  }
  flush();
}

Lender::Stream& Lender::streamOf(
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
bool Lender::addPieces(Stream& stream, ByteSpan payload) {
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

void Lender::drop(uint64_t id) {
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

Lender::Stream Lender::begin(
    const MessageHeader& header,
    const RegionPtr& region) {
  Stream stream{region, {}, header.address};
  if (auto* const gpus = region->accelerator()) {
    stream.staged = std::make_unique<StagedSource>(
        *gpus, region->view().device, userOf(region, [](bool) {}));
  }
  return stream;
}

void Lender::onPut(const MessageHeader& header, ByteSpan payload) {
  const auto region = lent(header.offset);
  if (!region) {
    answer(MessageType::kSettled, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  if (region->handle().readOnly) {
    answer(MessageType::kSettled, header.id, FinishStatus::kForReading);
    return;
  }
  const uint64_t count = header.length;
  const bool whole = count <= payload.size() / sizeof(FramePiece);
  const auto bytes =
      payload.subspan(whole ? count * sizeof(FramePiece) : payload.size());
  std::vector<std::span<std::byte>> places;
  size_t size = 0;
  for (size_t i = 0; whole && i < count; ++i) {
    const auto piece = pieceAt(payload, i);
    if (!inside(*region, piece) || piece.size > bytes.size() - size) {
      break;
    }
    places.push_back({region->view().data + piece.offset, piece.size});
    size += piece.size;
  }
  if (!whole || places.size() != count) {
    answer(MessageType::kSettled, header.id, FinishStatus::kOutOfRange);
    return;
  }
  put(header, region, bytes.first(size), places);
}

void Lender::put(
    const MessageHeader& header,
    const RegionPtr& region,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  if (region->accelerator() == nullptr) {
    putPlainly(header, bytes, places);
    return;
  }
  if (arriving_.size() >= kMostArriving && !arriving_.contains(header.id)) {
    answer(MessageType::kSettled, header.id, FinishStatus::kFailed);
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

void Lender::putPlainly(
    const MessageHeader& header,
    ByteSpan bytes,
    const std::vector<std::span<std::byte>>& places) {
  const auto failed = arriving_.find(header.id);
  auto fault = failed == arriving_.end() ? scatterGuarded(bytes, places)
                                         : failed->second->fault;
  if (fault != Fault::kNone && failed == arriving_.end() &&
      arriving_.size() < kMostArriving) {
    auto& arriving = arriving_[header.id] = std::make_shared<Arriving>();
    arriving->failed = true;
    arriving->fault = fault;
  }
  if (header.slot == 0) {
    return;
  }
  arriving_.erase(header.id);
  const bool good = fault == Fault::kNone;
  answer(
      MessageType::kSettled,
      header.id,
      good ? FinishStatus::kOk : FinishStatus::kUnwritable,
      fault);
}

// Says what has arrived. True if anything has.
bool Lender::answerArrived() {
  return std::erase_if(arriving_, [this](const auto& entry) {
           const auto& [id, arriving] = entry;
           if (arriving->copies > 0 || (arriving->failed && !arriving->last)) {
             return false;
           }
           if (arriving->last) {
             answer(
                 MessageType::kSettled,
                 id,
                 arriving->failed ? FinishStatus::kFailed : FinishStatus::kOk);
           }
           return true;
         }) != 0;
}

bool Lender::flush() {
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
      answer(MessageType::kSettled, id, FinishStatus::kFailed);
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
ByteSpan Lender::take(Stream& stream, size_t most) {
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
bool Lender::hasBytes(Stream& stream) {
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
Fault Lender::fillFrame(Stream& stream, size_t most) {
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

bool Lender::sendChunk(uint64_t id, Stream& stream) {
  const size_t most = std::min(kMostPieceBytes, connection_->maxPayload());
  if (const auto fault = fillFrame(stream, most); fault != Fault::kNone) {
    answer(MessageType::kSettled, id, FinishStatus::kUnreadable, fault);
    asked_ -= stream.pieces.size();
    stream.pieces.clear();
    frame_.clear();
    return true;
  }
  const auto payload =
      stream.staged ? stream.staged->front(most) : ByteSpan(frame_);
  MessageHeader chunk;
  chunk.type = MessageType::kChunk;
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
