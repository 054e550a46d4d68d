#include "rdma/read_pulls.h"

#include <algorithm>

namespace dlslime::rdma {

namespace {
// Long enough to run at the line's rate, short enough that a message behind
// one waits for 20 us at 400 Gb/s.
constexpr size_t kPieceBytes = 1024 * 1024;
// Read at a time. What a device serves at once is 16 requests per queue pair.
constexpr size_t kMostReading = 16;
// Where there are several rails: what one has taken and is slow with keeps all
// waiting, so it takes less at a time. Four cover 10 us at 800 Gb/s.
constexpr size_t kStripeBytes = 256 * 1024;
constexpr size_t kMostStripes = 4;
} // namespace

void ReadPulls::use(const std::vector<std::unique_ptr<Rail>>& rails) {
  lanes_.clear();
  for (const auto& rail : rails) {
    lanes_.push_back({rail.get(), {}, 0});
  }
}

void ReadPulls::start(
    uint64_t pullId,
    RemoteBuffer source,
    MemoryView destination,
    RailMemory::Regions regions) {
  Pull pull;
  pull.number = nextNumber_++;
  pull.pullId = pullId;
  pull.source = source;
  pull.destination = destination;
  pull.regions = std::move(regions);
  pulls_.push_back(std::move(pull));
}

void ReadPulls::refuse(uint64_t pullId, Status why) {
  Pull pull;
  pull.number = nextNumber_++;
  pull.pullId = pullId;
  pull.status = std::move(why);
  pulls_.push_back(std::move(pull));
}

void ReadPulls::abandon(uint64_t pullId, const Status& why) {
  for (auto& pull : pulls_) {
    if (pull.pullId == pullId && pull.status.ok()) {
      pull.status = why;
    }
  }
}

void ReadPulls::abandonAll(const Status& why) {
  for (auto& pull : pulls_) {
    if (pull.status.ok() && !pull.over()) {
      pull.status = why;
    }
  }
}

double ReadPulls::Lane::secondsFor(size_t more) const {
  return static_cast<double>(bytes + more) /
      static_cast<double>(rail->bitsPerSecond);
}

// The rail that would have the piece here first; null: all are busy.
ReadPulls::Lane* ReadPulls::laneFor(const Pull& pull, size_t piece) {
  const size_t most = lanes_.size() > 1 ? kMostStripes : kMostReading;
  Lane* best = nullptr;
  for (auto& lane : lanes_) {
    const auto& rail = *lane.rail;
    if (lane.reading.size() < most && lane.rail->queue.room() &&
        pull.source.keys[rail.peerNicNumber] != 0 &&
        pull.regions[rail.nicNumber] != nullptr &&
        (best == nullptr || lane.secondsFor(piece) < best->secondsFor(piece))) {
      best = &lane;
    }
  }
  return best;
}

bool ReadPulls::postPiece(Pull& pull, Lane& lane, size_t size, int& error) {
  auto& rail = *lane.rail;
  ibv_sge segment{};
  segment.addr =
      reinterpret_cast<uint64_t>(pull.destination.data + pull.posted);
  segment.length = static_cast<uint32_t>(size);
  segment.lkey = pull.regions[rail.nicNumber]->localKey();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_READ;
  request.sg_list = &segment;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = pull.source.address + pull.posted;
  request.wr.rdma.rkey = pull.source.keys[rail.peerNicNumber];
  if (!rail.queue.post(request, RequestKind::kRead, pull.number, error)) {
    return false;
  }
  lane.reading.push_back({pull.posted, size});
  pull.posted += size;
  ++pull.reading;
  lane.bytes += size;
  return true;
}

const Rail* ReadPulls::post(std::string& why) {
  const size_t most = lanes_.size() > 1 ? kStripeBytes : kPieceBytes;
  for (auto& pull : pulls_) {
    while (pull.status.ok() && pull.posted < pull.destination.size) {
      const size_t piece = std::min(most, pull.destination.size - pull.posted);
      auto* const lane = laneFor(pull, piece);
      if (lane == nullptr) {
        break; // another pull may go by other rails
      }
      int error = 0;
      if (!postPiece(pull, *lane, piece, error)) {
        why = "an RDMA read could not be posted: " + errnoText(error);
        return lane->rail;
      }
    }
  }
  return nullptr;
}

void ReadPulls::completed(
    const Rail& rail,
    uint32_t number,
    const Status& status) {
  size_t offset = 0;
  for (auto& lane : lanes_) { // one of them is its, and has its pieces in order
    if (lane.rail == &rail && !lane.reading.empty()) {
      offset = lane.reading.front().offset;
      lane.bytes -= lane.reading.front().size;
      lane.reading.pop_front();
    }
  }
  for (auto& pull : pulls_) {
    if (pull.number != number) {
      continue;
    }
    --pull.reading;
    if (!status.ok()) {
      pull.missing = std::min(pull.missing, offset);
      pull.status = pull.status.ok() ? status : pull.status;
    }
    return;
  }
}

bool ReadPulls::report(ConnectionEvents& events) {
  bool any = false;
  for (size_t i = 0; i < pulls_.size();) {
    if (!pulls_[i].over()) {
      ++i;
      continue;
    }
    const Pull pull = std::move(pulls_[i]);
    pulls_.erase(pulls_.begin() + static_cast<ptrdiff_t>(i));
    if (!pull.status.ok()) {
      events.onPartlyPulled(pull.pullId, std::min(pull.posted, pull.missing));
    }
    events.onPulled(pull.pullId, pull.status);
    any = true;
  }
  return any;
}

} // namespace dlslime::rdma
