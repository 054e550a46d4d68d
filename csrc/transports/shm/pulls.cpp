#include "transports/shm/pulls.h"

#include <algorithm>
#include <cerrno>

#include "base/memory/fault.h"
#include "transports/shm/cma.h"

namespace dlslime::shm {

namespace {

Status readError(const CopyJob& job) {
  if (const auto fault = copyFaultOf(job.error); fault.fault != Fault::kNone) {
    return statusOf(fault, false);
  }
  const auto process = "process " + std::to_string(job.pid);
  if (job.error == ESRCH) { // before the control socket ends
    return {ErrorCode::kPeerFailed, "the sender has ended (" + process + ")"};
  }
  return {
      isRefusal(job.error) ? ErrorCode::kDenied : ErrorCode::kTransportFailed,
      "cannot read the sender's memory (" + process +
          "): " + errnoText(job.error)};
}

// Returns the status for an error left by the sender at a desk. `again`: the
// pull began after the sender's denial, so the sender should not have tried
// again.
Status writeError(int error, bool again) {
  if (auto fault = copyFaultOf(error); fault.fault != Fault::kNone) {
    fault.local = !fault.local; // seen from the receiver
    return statusOf(fault, false);
  }
  return {
      isRefusal(error) && !again ? ErrorCode::kDenied
                                 : ErrorCode::kTransportFailed,
      "the sender could not write into this process: " + errnoText(error)};
}

} // namespace

void Pulls::start(
    uint64_t pullId,
    uint64_t peerId,
    RemoteBuffer source,
    MemoryView destination) {
  pulls_.push_back(
      {pullId,
       peerId,
       source.address,
       destination,
       pieceBytes(destination.size),
       pieceCount(destination.size),
       -1,
       0,
       {},
       false,
       senderDenied_});
  openDesks();
}

void Pulls::openDesks() {
  for (auto& pull : pulls_) {
    if (pull.desk >= 0 || pull.abandoned) {
      continue;
    }
    const auto* const freeDesk =
        std::find(std::begin(deskUsed_), std::end(deskUsed_), false);
    if (freeDesk == std::end(deskUsed_)) {
      return;
    }
    pull.desk = static_cast<int>(freeDesk - std::begin(deskUsed_));
    deskUsed_[pull.desk] = true;
    openDesk(
        desks_[pull.desk],
        pull.peerId,
        reinterpret_cast<uint64_t>(pull.destination.data),
        pull.destination.size);
    if (ended_) {
      closeDesk(desks_[pull.desk]);
    }
  }
}

Pulls::Pull* Pulls::find(uint64_t pullId) {
  const auto found =
      std::find_if(pulls_.begin(), pulls_.end(), [&](const Pull& pull) {
        return pull.pullId == pullId;
      });
  return found == pulls_.end() ? nullptr : &*found;
}

void Pulls::abandon(uint64_t pullId) {
  Pull* const pull = find(pullId);
  if (pull != nullptr) {
    giveUp(*pull, Status(ErrorCode::kCancelled, "the transfer was given up"));
  }
}

void Pulls::giveUp(Pull& pull, Status why) {
  pull.abandoned = true;
  pull.status = std::move(why);
  if (pull.desk >= 0) {
    closeDesk(desks_[pull.desk]);
  }
}

void Pulls::endAll() {
  ended_ = true;
  for (auto& pull : pulls_) {
    abandon(pull.pullId);
  }
}

void Pulls::denyAll() {
  for (auto& pull : pulls_) {
    if (pull.status.ok()) {
      giveUp(pull, Status(ErrorCode::kDenied, "neither end may copy"));
    }
  }
}

bool Pulls::ended(const Pull& pull) const {
  if (pull.running != 0) {
    return false;
  }
  if (pull.desk < 0 || ended_) {
    return pull.abandoned;
  }
  const auto state = deskState(desks_[pull.desk]);
  return state.taken == state.total && state.done >= state.total;
}

bool Pulls::poll(ConnectionEvents& events) {
  bool any = false;
  for (size_t i = 0; i < pulls_.size();) {
    if (!ended(pulls_[i])) {
      ++i;
      continue;
    }
    Pull pull = std::move(pulls_[i]);
    pulls_.erase(pulls_.begin() + static_cast<ptrdiff_t>(i));
    if (pull.desk >= 0) {
      const auto error = static_cast<int>(desks_[pull.desk].error.load());
      senderDenied_ |= isRefusal(error);
      if (error != 0 && pull.status.ok()) {
        pull.status = writeError(error, pull.afterDenial);
      }
      deskUsed_[pull.desk] = false;
      openDesks();
    }
    events.onPulled(pull.pullId, pull.status);
    any = true;
  }
  return any;
}

bool Pulls::claim(CopyJob& job) {
  if (ended_ || corrupted_) {
    return false;
  }
  for (auto& pull : pulls_) {
    if (pull.desk < 0) {
      return false;
    }
    const auto piece = takeFront(desks_[pull.desk]);
    if (!piece) {
      continue;
    }
    if (*piece >= pull.total) {
      // Only local numbers bound the memory written; the shared numbers may be
      // false.
      corrupted_ = true;
      endAll(); // the counters of the desk may never add up
      return false;
    }
    const size_t offset = *piece * pull.piece;
    job.run = readFromPeer;
    job.local = pull.destination.data + offset;
    job.remote = pull.source + offset;
    job.size = std::min(pull.piece, pull.destination.size - offset);
    job.pid = static_cast<int>(pid_);
    job.token = pull.pullId;
    ++pull.running;
    return true;
  }
  return false;
}

void Pulls::finish(const CopyJob& job) {
  Pull* const pull = find(job.token);
  if (pull == nullptr) {
    return;
  }
  --pull->running;
  const bool failed = job.error != 0 && pull->status.ok();
  if (failed) {
    pull->status = inWords([&] { return readError(job); });
  }
  finishPiece(desks_[pull->desk], 0);
  if (failed) {
    closeDesk(desks_[pull->desk]);
  }
}

} // namespace dlslime::shm
