#include "engine/one_sided/get_server.h"

#include <algorithm>
#include <cstring>

#include "base/memory/guarded_copy.h"
#include "engine/one_sided/frame_pieces.h"

namespace dlslime {

namespace {
// Most pieces that a peer may ask for before taking any: 128 MiB of our memory,
// at 16 bytes a piece.
constexpr size_t kMostPieces = size_t{8} << 20;
// Number of pieces taking as much memory as the bookkeeping of a stream.
constexpr size_t kPiecesOfStream = 64;
} // namespace

void GetServer::onRequest(
    const wire::GetRequest& request,
    const RegionPtr& region,
    ByteSpan payload) {
  const size_t count = payload.size() / sizeof(wire::FramePiece);
  if (fits(request.id, count) &&
      addPieces(streamOf(request, region), payload)) {
    flush();
    return;
  }
  if (streams_.contains(request.id)) {
    drop(request.id);
  }
  tellEnd(out_, request.id, FinishStatus::kOutOfRange);
}

bool GetServer::fits(uint64_t id, size_t count) const {
  const size_t streams = streams_.size() + (streams_.contains(id) ? 0 : 1);
  return asked_ + count + streams * kPiecesOfStream <= kMostPieces;
}

GetServer::Stream& GetServer::streamOf(
    const wire::GetRequest& request,
    const RegionPtr& region) {
  const auto found = streams_.find(request.id);
  if (found != streams_.end()) {
    return found->second;
  }
  std::list<uint64_t> turn{request.id};
  ofRegions_.emplace(region->handle().id, request.id);
  auto& stream =
      streams_.emplace(request.id, begin(request, region)).first->second;
  stream.turn = turn.begin();
  turns_.splice(turns_.end(), turn);
  return stream;
}

// Returns false if the peer asks for bytes outside the region.
bool GetServer::addPieces(Stream& stream, ByteSpan payload) {
  const size_t count = payload.size() / sizeof(wire::FramePiece);
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

void GetServer::drop(uint64_t id) {
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

GetServer::Stream GetServer::begin(
    const wire::GetRequest& request,
    const RegionPtr& region) {
  Stream stream{region, {}, request.askedBefore};
  if (auto* const gpus = region->accelerator()) {
    stream.staged = std::make_unique<StagedSource>(
        *gpus, region->view().device, userOf(region, [](bool) {}));
  }
  return stream;
}

bool GetServer::flush() {
  bool any = false;
  for (int i = 0; i < kPiecesPerFlush && !turns_.empty(); ++i) {
    if (route_.connection == nullptr) {
      return any;
    }
    const auto id = turns_.front();
    auto& stream = streams_.at(id);
    const bool ready = hasBytes(stream);
    const bool failed = !ready && stream.staged->failed();
    if (failed) {
      tellEnd(out_, id, FinishStatus::kFailed);
    } else if (ready && !sendChunk(id, stream)) {
      return any;
    }
    any |= ready;
    if (failed || stream.over()) {
      drop(id);
    } else { // the next stream takes a turn
      std::list<uint64_t> turn;
      turn.splice(turn.end(), turns_, turns_.begin());
      const bool staged = stream.staged != nullptr;
      turns_.splice(StagedSource::nextTurn(turns_, staged), turn);
    }
  }
  return any;
}

// Takes the next bytes of a stream out of `pieces`: up to `most` bytes, all in
// one piece.
ByteSpan GetServer::take(Stream& stream, size_t most) {
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

// Returns false if a GPU has not copied the next bytes yet, or could not.
bool GetServer::hasBytes(Stream& stream) {
  if (!stream.staged) {
    return true;
  }
  stream.staged->fetchAhead([&](size_t room, auto& next) REQUIRES(kEngineLock) {
    while (room > 0 && !stream.pieces.empty()) {
      next.push_back(take(stream, room));
      room -= next.back().size();
    }
  });
  return !stream.staged->front(1).empty();
}

// Copies the next bytes to frame_ if processors can reach the memory. Returns
// the fault.
Fault GetServer::fillFrame(Stream& stream, size_t most) {
  std::vector<ByteSpan> places;
  const size_t before = frame_.size(); // not 0: the frame waited for room
  size_t size = before;
  while (!stream.staged && !stream.pieces.empty() && size < most) {
    places.push_back(take(stream, most - size));
    size += places.back().size();
  }
  frame_.resize(size);
  return gatherGuarded(places, frame_.data() + before);
}

void GetServer::endUnreadable(uint64_t id, Stream& stream, Fault fault) {
  tellEnd(out_, id, FinishStatus::kUnreadable, fault);
  asked_ -= stream.pieces.size();
  stream.pieces.clear();
  frame_.clear();
}

// Returns whether the connection should read the next bytes from the region:
// few bytes are cheaper to copy, and go out with other messages.
bool GetServer::gathers(const Stream& stream) const {
  if (stream.staged || !frame_.empty() ||
      route_.connection->gatherer() == nullptr) {
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

// Sends a GetData with bytes read by the connection. Returns false for want of
// room, as sendChunk() does.
bool GetServer::gatherChunk(uint64_t id, Stream& stream) {
  const size_t most = route_.connection->maxPayload();
  auto chunk = wire::encode(wire::GetData{id, stream.position});
  const auto gathered =
      out_.sendGathered(chunk, most, [&]() REQUIRES(kEngineLock) {
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

bool GetServer::sendChunk(uint64_t id, Stream& stream) {
  if (gathers(stream)) {
    return gatherChunk(id, stream);
  }
  const size_t most =
      std::min(kMostPieceBytes, route_.connection->maxPayload());
  if (const auto fault = fillFrame(stream, most); fault != Fault::kNone) {
    endUnreadable(id, stream, fault);
    return true;
  }
  const auto payload =
      stream.staged ? stream.staged->front(most) : ByteSpan(frame_);
  const auto chunk = wire::encode(wire::GetData{id, stream.position});
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

void GetServer::dropThose(const RegionPtr& region) {
  const auto id = region->handle().id;
  for (auto next = ofRegions_.lower_bound({id, 0});
       next != ofRegions_.end() && next->first == id;) {
    const auto key = (next++)->second;
    const auto stream = streams_.find(key);
    if (stream != streams_.end() && stream->second.region == region) {
      drop(key);
    } else { // the stream was never made, for want of memory
      ofRegions_.erase({id, key});
    }
  }
}

void GetServer::clear() {
  streams_.clear();
  ofRegions_.clear();
  turns_.clear();
  asked_ = 0;
  frame_.clear();
}

} // namespace dlslime
