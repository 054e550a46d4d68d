#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "engine/gpu/staging.h"
#include "engine/one_sided/active_part.h"
#include "engine/one_sided/region.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/outbound.h"
#include "engine/wire/one_sided_messages.h"

namespace dlslime {

// Reads by one peer that are answered in messages, because the route can't move
// the bytes. Under the engine's lock.
class GetServer {
 public:
  GetServer(Outbound& out, const TransferRoute& route)
      : out_(out), route_(route) {}

  void onRequest(
      const wire::GetRequest& request,
      const RegionPtr& region,
      ByteSpan payload) REQUIRES(kEngineLock);
  // Sends what had to wait for room. Returns true if anything moved.
  bool flush() REQUIRES(kEngineLock);
  // Drops the reads of a region that the peer began and has given up since.
  void dropThose(const RegionPtr& region) REQUIRES(kEngineLock);
  void clear() REQUIRES(kEngineLock);
  bool idle() const REQUIRES(kEngineLock) {
    return streams_.empty();
  }

 private:
  struct Stream {
    RegionPtr region;
    std::deque<wire::FramePiece> pieces; // still to be sent
    uint64_t position = 0; // of the next byte, in all bytes asked for
    std::list<uint64_t>::iterator turn{};
    std::unique_ptr<StagedSource> staged = nullptr; // for memory of a GPU
    bool over() const REQUIRES(kEngineLock) {
      return pieces.empty() && (!staged || staged->empty());
    }
  };
  static Stream begin(const wire::GetRequest& request, const RegionPtr& region);
  // Says whether the pieces of a request are within the limit of all requests.
  bool fits(uint64_t id, size_t count) const REQUIRES(kEngineLock);
  Stream& streamOf(const wire::GetRequest& request, const RegionPtr& region)
      REQUIRES(kEngineLock);
  bool addPieces(Stream& stream, ByteSpan payload) REQUIRES(kEngineLock);
  void drop(uint64_t id) REQUIRES(kEngineLock);
  ByteSpan take(Stream& stream, size_t most) REQUIRES(kEngineLock);
  Fault fillFrame(Stream& stream, size_t most) REQUIRES(kEngineLock);
  bool hasBytes(Stream& stream) REQUIRES(kEngineLock);
  bool sendChunk(uint64_t id, Stream& stream) REQUIRES(kEngineLock);
  bool gathers(const Stream& stream) const REQUIRES(kEngineLock);
  bool gatherChunk(uint64_t id, Stream& stream) REQUIRES(kEngineLock);
  void endUnreadable(uint64_t id, Stream& stream, Fault fault)
      REQUIRES(kEngineLock);

  Outbound& out_;
  const TransferRoute& route_;
  std::map<uint64_t, Stream> streams_; // by the peer's id of the transfer
  // Pairs of a region's id and a key of streams_.
  std::set<std::pair<uint64_t, uint64_t>> ofRegions_;
  std::list<uint64_t> turns_; // keys of streams_ in turn
  size_t asked_ = 0; // pieces in all streams
  Bytes frame_; // of the first stream in turn, waiting for room
};

} // namespace dlslime
