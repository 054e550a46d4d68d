#include "transports/common/piece_copies.h"

#include <algorithm>
#include <cerrno>

#include "base/memory/fault.h"

namespace dlslime {

namespace {
// Limits of a job: high enough to spread the cost of claiming, and low enough
// for two threads to share the rest of a transfer evenly and for a stop to take
// effect soon.
constexpr size_t kJobBytes = 512 * 1024;
constexpr size_t kJobPieces = 256;

Status failed(const CopyJob& job, bool write) {
  if (const auto fault = copyFaultOf(job.error); fault.fault != Fault::kNone) {
    return statusOf(fault, write);
  }
  const auto process = "process " + std::to_string(job.pid);
  if (job.error == ESRCH) { // before the control socket ends
    return {ErrorCode::kPeerFailed, "the peer has ended (" + process + ")"};
  }
  return {
      isRefusal(job.error) ? ErrorCode::kDenied : ErrorCode::kTransportFailed,
      "cannot get at the memory of " + process + ": " + errnoText(job.error)};
}
} // namespace

void PieceCopies::start(const TransferWork& work) {
  Transfer transfer;
  transfer.work = work;
  transfer.number = nextNumber_++;
  transfers_.push_back(std::move(transfer));
}

void PieceCopies::stop(uint64_t id) {
  for (auto& transfer : transfers_) {
    if (transfer.work.id == id && transfer.status.ok()) {
      transfer.status =
          Status(ErrorCode::kCancelled, "the transfer was given up");
    }
  }
}

void PieceCopies::stopAll() {
  for (auto& transfer : transfers_) {
    if (!transfer.over()) {
      stop(transfer.work.id);
    }
  }
}

void PieceCopies::take(Transfer& transfer, CopyJob& job) {
  const auto& pieces = transfer.work.pieces;
  const auto& first = pieces[transfer.piece];
  const size_t left = first.size - transfer.offset;
  if (transfer.offset != 0 || left > kJobBytes) {
    job.pieces = {};
    job.local = first.local + transfer.offset;
    job.remote = first.remote + transfer.offset;
    job.size = std::min(left, kJobBytes);
    transfer.offset += job.size;
    if (transfer.offset == first.size) {
      ++transfer.piece;
      transfer.offset = 0;
    }
    return;
  }
  size_t bytes = 0;
  const size_t begin = transfer.piece;
  const size_t end = std::min(pieces.size(), begin + kJobPieces);
  while (transfer.piece < end && bytes < kJobBytes &&
         pieces[transfer.piece].size <= kJobBytes) {
    bytes += pieces[transfer.piece++].size;
  }
  job.pieces = pieces.subspan(begin, transfer.piece - begin);
}

bool PieceCopies::claim(CopyJob& job) {
  for (size_t i = 0; i < transfers_.size(); ++i) {
    turn_ = (turn_ + 1) % transfers_.size();
    auto& transfer = transfers_[turn_];
    if (transfer.claimed() || !transfer.status.ok()) {
      continue;
    }
    take(transfer, job);
    job.run = transfer.work.write ? ways_.write : ways_.read;
    job.pid = ways_.pid;
    job.token = transfer.number;
    ++transfer.running;
    return true;
  }
  return false;
}

void PieceCopies::finish(const CopyJob& job) {
  for (auto& transfer : transfers_) {
    if (transfer.number == job.token) {
      --transfer.running;
      if (job.error != 0 && transfer.status.ok()) {
        transfer.status = failed(job, transfer.work.write);
      }
    }
  }
}

bool PieceCopies::report(ConnectionEvents& events) {
  bool any = false;
  for (size_t i = 0; i < transfers_.size();) {
    if (!transfers_[i].over()) {
      ++i;
      continue;
    }
    const Transfer ended = std::move(transfers_[i]);
    transfers_.erase(transfers_.begin() + static_cast<ptrdiff_t>(i));
    events.onTransferred(ended.work.id, ended.status);
    any = true;
  }
  return any;
}

} // namespace dlslime
