#include "rdma/read_pulls.h"

#include <algorithm>

namespace dlslime::rdma {

namespace {
// Long enough to run at the line's rate, short enough that a message behind
// one waits for 20 us at 400 Gb/s.
constexpr size_t kPieceBytes = 1024 * 1024;
// Read at a time. What a device serves at once is 16 requests per queue pair.
constexpr uint32_t kMostReading = 16;
} // namespace

void ReadPulls::start(
    uint64_t pullId,
    RemoteBuffer source,
    MemoryView destination,
    MemoryRegionPtr region) {
  Pull pull;
  pull.number = nextNumber_++;
  pull.pullId = pullId;
  pull.source = source;
  pull.destination = destination;
  pull.region = std::move(region);
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
    if (pull.status.ok()) {
      pull.status = why;
    }
  }
}

Status ReadPulls::postPiece(Pull& pull) {
  const size_t size =
      std::min(kPieceBytes, pull.destination.size - pull.posted);
  ibv_sge segment{};
  segment.addr =
      reinterpret_cast<uint64_t>(pull.destination.data + pull.posted);
  segment.length = static_cast<uint32_t>(size);
  segment.lkey = pull.region->localKey();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_READ;
  request.sg_list = &segment;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = pull.source.address + pull.posted;
  request.wr.rdma.rkey = pull.source.key;
  int error = 0;
  if (!queue_.post(request, RequestKind::kRead, pull.number, error)) {
    return {
        ErrorCode::kTransportFailed,
        "an RDMA read could not be posted: " + errnoText(error)};
  }
  pull.posted += size;
  ++pull.reading;
  ++reading_;
  return {};
}

Status ReadPulls::post() {
  for (auto& pull : pulls_) {
    while (pull.status.ok() && pull.posted < pull.destination.size) {
      if (reading_ >= kMostReading || !queue_.room()) {
        return {};
      }
      auto status = postPiece(pull);
      if (!status.ok()) {
        return status;
      }
    }
  }
  return {};
}

void ReadPulls::completed(uint32_t number, const Status& status) {
  for (auto& pull : pulls_) {
    if (pull.number != number) {
      continue;
    }
    --pull.reading;
    --reading_;
    if (!status.ok() && pull.status.ok()) {
      pull.status = status;
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
    events.onPulled(pull.pullId, pull.status);
    any = true;
  }
  return any;
}

} // namespace dlslime::rdma
