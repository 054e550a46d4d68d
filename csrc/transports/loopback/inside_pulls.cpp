#include "transports/loopback/inside_pulls.h"

#include <algorithm>

#include "transports/loopback/inside_copies.h"

namespace dlslime::loopback {

namespace {
constexpr size_t kPieceBytes = 1024 * 1024;

Status givenUp() {
  return {ErrorCode::kCancelled, "the transfer was given up"};
}
} // namespace

void InsidePulls::add(
    uint64_t id,
    uint64_t peerId,
    const RemoteBuffer& source,
    const MemoryView& destination,
    int delay) {
  Pull pull;
  pull.id = id;
  pull.peerId = peerId;
  pull.source = source.address;
  pull.destination = destination;
  pull.delay = delay;
  pulls_.push_back(pull);
}

void InsidePulls::abandon(uint64_t id) {
  for (auto& pull : pulls_) {
    if (pull.id == id) {
      pull.stopped = givenUp();
    }
  }
}

void InsidePulls::abandonAll() {
  for (auto& pull : pulls_) {
    pull.stopped = givenUp();
  }
}

// Returns the memory to pull from; empty if the peer does not expose all of the
// memory any more.
MemoryView InsidePulls::sourceOf(const Pull& pull) const {
  auto view = exposed_(pull.peerId);
  const auto skipped =
      pull.source - reinterpret_cast<uint64_t>(view.data); // pulled before
  if (view.data == nullptr || skipped > view.size ||
      view.size - skipped < pull.destination.size) {
    return {};
  }
  view.data += skipped;
  return view;
}

bool InsidePulls::claim(CopyJob& job) {
  for (auto& pull : pulls_) {
    const size_t left = pull.destination.size - pull.claimed;
    if (!pull.stopped.ok() || left == 0) {
      continue;
    }
    const auto exposed = sourceOf(pull);
    const auto* const source = exposed.data;
    if (source == nullptr) {
      pull.stopped = Status(
          ErrorCode::kTransportFailed, "the sender has withdrawn its memory");
      continue;
    }
    job.run =
        exposed.mayFault || pull.destination.mayFault ? readInside : copyInside;
    job.local = pull.destination.data + pull.claimed;
    job.remote = reinterpret_cast<uint64_t>(source + pull.claimed);
    // Overlapping memory can't be copied in pieces by several threads, so a
    // single job copies everything.
    const bool apart = source + left <= job.local || job.local + left <= source;
    job.size = apart ? std::min(left, kPieceBytes) : left;
    job.token = pull.id;
    pull.claimed += job.size;
    ++pull.running;
    return true;
  }
  return false;
}

void InsidePulls::finish(const CopyJob& job) {
  for (auto& pull : pulls_) {
    if (pull.id != job.token) {
      continue;
    }
    --pull.running;
    if (job.error != 0 && pull.stopped.ok()) {
      pull.stopped = statusOf(copyFaultOf(job.error), false);
    }
  }
}

bool InsidePulls::report(ConnectionEvents& events) {
  bool any = false;
  for (size_t i = 0; i < pulls_.size();) {
    auto& pull = pulls_[i];
    const bool finished =
        !pull.stopped.ok() || pull.claimed == pull.destination.size;
    if (!finished || pull.running != 0 || pull.delay-- > 0) {
      ++i;
      continue;
    }
    const Status status = pull.stopped;
    const auto id = pull.id;
    if (!status.ok()) {
      events.onPartlyPulled(id, pull.claimed);
    }
    pulls_.erase(pulls_.begin() + static_cast<ptrdiff_t>(i));
    events.onPulled(id, status);
    any = true;
  }
  return any;
}

} // namespace dlslime::loopback
