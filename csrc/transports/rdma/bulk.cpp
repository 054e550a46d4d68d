#include "transports/rdma/bulk.h"

#include <algorithm>

namespace dlslime::rdma {

namespace {
// Size of a part: long enough to run at line rate, and short enough that a
// message behind a part waits for only 5 us at 400 Gb/s. Over rdma_rxe, a
// stream of messages of 1 MiB took 3.8 ms a message, but 4.7 ms with parts of 1
// MiB.
constexpr size_t kPartBytes = 256 * 1024;
// Limits on the parts in flight over a single rail. A device serves 16 READs
// per queue pair at a time; small parts may be more, so that the device never
// runs out of work.
constexpr size_t kMostParts = 16;
constexpr size_t kMostSmallParts = 128;
constexpr size_t kMostSmallBytes = 4 * 1024 * 1024;
// Limit on the parts in flight over each of several rails. A slow rail delays
// the whole job by the parts that it has taken, so each rail takes few. Four
// parts cover 10 us at 800 Gb/s.
constexpr size_t kMostStripes = 4;
} // namespace

void Bulk::use(const std::vector<std::unique_ptr<Rail>>& rails) {
  lanes_.clear();
  for (const auto& rail : rails) {
    lanes_.push_back({rail.get(), {}, 0});
  }
}

void Bulk::startPull(
    uint64_t pullId,
    RemoteBuffer source,
    MemoryView destination,
    RailMemory::Regions regions) {
  Job job;
  job.number = nextNumber_++;
  job.id = pullId;
  job.whole = {destination.data, source.address, destination.size};
  job.there = source;
  job.regions = std::move(regions);
  jobs_.push_back(std::move(job));
}

void Bulk::startTransfer(
    const TransferWork& work,
    RailMemory::Regions regions) {
  Job job;
  job.number = nextNumber_++;
  job.kind = Kind::kTransfer;
  job.id = work.id;
  job.write = work.write;
  job.pieces = work.pieces;
  job.there = work.remote;
  job.regions = std::move(regions);
  const bool possible =
      std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
        return usable(job, lane);
      });
  if (!possible) {
    job.status = Status(
        ErrorCode::kTransportFailed,
        "no NIC has the memory of both ends registered");
  }
  jobs_.push_back(std::move(job));
}

void Bulk::abandon(Kind kind, uint64_t id, const Status& why) {
  for (auto& job : jobs_) {
    if (job.kind == kind && job.id == id && job.status.ok()) {
      job.status = why;
    }
  }
}

void Bulk::abandonAll(const Status& why) {
  for (auto& job : jobs_) {
    if (job.status.ok() && !job.over()) {
      job.status = why;
    }
  }
}

double Bulk::Lane::secondsFor(size_t more) const {
  return static_cast<double>(bytes + more) /
      static_cast<double>(rail->bitsPerSecond);
}

bool Bulk::usable(const Job& job, const Lane& lane) const {
  return job.there.keys[lane.rail->peerNicNumber] != 0 &&
      job.regions[lane.rail->nicNumber] != nullptr;
}

bool Bulk::full(const Lane& lane, size_t more) const {
  const bool several = lanes_.size() > 1;
  const size_t most = several ? kMostStripes : kMostParts;
  const size_t bytes = several ? kMostStripes * kPartBytes : kMostSmallBytes;
  return lane.running.size() >= most &&
      (lane.running.size() >= kMostSmallParts || lane.bytes + more > bytes);
}

// Returns the lane expected to finish the part first, or null if all lanes are
// busy.
Bulk::Lane* Bulk::laneFor(const Job& job, size_t size) {
  Lane* best = nullptr;
  for (auto& lane : lanes_) {
    if (!full(lane, size) && lane.rail->queue.room() && usable(job, lane) &&
        (best == nullptr || lane.secondsFor(size) < best->secondsFor(size))) {
      best = &lane;
    }
  }
  return best;
}

bool Bulk::postPart(Job& job, Lane& lane, size_t size, int& error) {
  auto& rail = *lane.rail;
  const auto& piece = job.next();
  ibv_sge segment{};
  segment.addr = reinterpret_cast<uint64_t>(piece.local + job.offset);
  segment.length = static_cast<uint32_t>(size);
  segment.lkey = job.regions[rail.nicNumber]->localKey();
  ibv_send_wr request{};
  request.opcode = job.write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  request.sg_list = &segment;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = piece.remote + job.offset;
  request.wr.rdma.rkey = job.there.keys[rail.peerNicNumber];
  // Recorded before posting, because refused() removes the part again if the
  // device refuses.
  lane.running.push_back({job.number, job.offset, size});
  lane.bytes += size;
  ++job.running;
  if (!rail.queue.post(request, RequestKind::kBulk, 0, error)) {
    return false;
  }
  if (job.write && size > 0) {
    const auto number = static_cast<size_t>(&lane - lanes_.data());
    job.unflushed |= number == 0 ? 0 : 1U << number;
    job.probe = request.wr.rdma.remote_addr;
  }
  job.offset += size;
  if (job.offset == piece.size) {
    ++job.piece;
    job.offset = job.kind == Kind::kPull ? job.offset : 0;
  }
  return true;
}

const Rail* Bulk::postJob(Job& job, std::string& why) {
  while (job.status.ok() && !job.posted()) {
    const size_t size = std::min(kPartBytes, job.next().size - job.offset);
    auto* const lane = laneFor(job, size);
    if (lane == nullptr) {
      break; // a later job may go over other rails
    }
    int error = 0;
    if (!postPart(job, *lane, size, error)) {
      why = std::string("an RDMA ") + (job.write ? "write" : "read") +
          " could not be posted: " + errnoText(error);
      return lane->rail;
    }
  }
  const bool flush = job.status.ok() && job.posted() && job.unflushed != 0;
  return flush ? postFlushes(job, why) : nullptr;
}

const Rail* Bulk::postFlushes(Job& job, std::string& why) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    auto& [rail, running, bytes] = lanes_[i];
    if ((job.unflushed >> i & 1) == 0 || !rail->queue.room()) {
      continue;
    }
    ibv_sge segment{};
    segment.addr = reinterpret_cast<uint64_t>(rail->scratch);
    segment.length = 1;
    segment.lkey = rail->mirror.localKey();
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_READ;
    request.sg_list = &segment;
    request.num_sge = 1;
    request.wr.rdma.remote_addr = job.probe;
    request.wr.rdma.rkey = job.there.keys[rail->peerNicNumber];
    running.push_back({job.number, 0, 0});
    ++job.running;
    job.unflushed &= ~(1U << i);
    int error = 0;
    if (!rail->queue.post(request, RequestKind::kBulk, 0, error)) {
      why = "the read after an RDMA write could not be posted: " +
          errnoText(error);
      return rail;
    }
  }
  return nullptr;
}

const Rail* Bulk::post(std::string& why) {
  for (auto& job : jobs_) {
    if (const auto* const broken = postJob(job, why)) {
      return broken;
    }
  }
  return nullptr;
}

void Bulk::completed(const Rail& rail, const Status& status) {
  for (auto& lane : lanes_) { // parts complete in order
    if (lane.rail == &rail && !lane.running.empty()) {
      const auto part = lane.running.front();
      lane.running.pop_front();
      lane.bytes -= part.size;
      end(part, status);
      return;
    }
  }
}

void Bulk::refused(const Rail& rail, uint32_t count, const Status& status) {
  for (auto& lane : lanes_) {
    for (; lane.rail == &rail && count > 0 && !lane.running.empty(); --count) {
      const auto part = lane.running.back();
      lane.running.pop_back();
      lane.bytes -= part.size;
      end(part, status);
    }
  }
}

void Bulk::end(const Part& part, const Status& status) {
  for (auto& job : jobs_) {
    if (job.number != part.job) {
      continue;
    }
    --job.running;
    if (!status.ok()) {
      job.missing = std::min(job.missing, part.offset);
      job.status = job.status.ok() ? status : job.status;
    }
    return;
  }
}

bool Bulk::report(ConnectionEvents& events) {
  bool any = false;
  for (size_t i = 0; i < jobs_.size();) {
    if (!jobs_[i].over()) {
      ++i;
      continue;
    }
    const Job job = std::move(jobs_[i]);
    jobs_.erase(jobs_.begin() + static_cast<ptrdiff_t>(i));
    any = true;
    if (job.kind == Kind::kTransfer) {
      events.onTransferred(job.id, job.status);
      continue;
    }
    if (!job.status.ok()) {
      events.onPartlyPulled(job.id, std::min(job.offset, job.missing));
    }
    events.onPulled(job.id, job.status);
  }
  return any;
}

} // namespace dlslime::rdma
