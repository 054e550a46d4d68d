#include "torch_ext/c10d/monitored_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/printable.h"
#include "torch_ext/support/checked_call.h"

namespace dlslime {

namespace {

constexpr uint32_t kBarrierTag = 0x80001000;
constexpr size_t kMostText = 4 * 1024;

milliseconds untilThen(TimePoint deadline) {
  return std::max(
      milliseconds(0),
      std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

} // namespace

void MonitoredBarrier::run(std::chrono::milliseconds limit, bool waitAllRanks) {
  const auto number = ++count_;
  const auto deadline = deadlineAfter(limit);
  if (handle_->rank() == 0) {
    lead(number, limit, deadline, waitAllRanks);
  } else {
    reach(number, deadline);
  }
}

void MonitoredBarrier::reach(uint64_t number, TimePoint deadline) {
  std::string problem;
  try {
    send(0, number, "");
    problem = receive(0, number, deadline);
  } catch (const Error& error) {
    problem = error.what();
  }
  TORCH_CHECK_WITH(
      DistBackendError,
      problem.empty(),
      "Rank ",
      handle_->rank(),
      " successfully reached monitoredBarrier, but received errors while "
      "waiting for send/recv from rank 0. Please check rank 0 logs for faulty "
      "rank. dlslime: rank 0: ",
      problem);
}

void MonitoredBarrier::lead(
    uint64_t number,
    milliseconds limit,
    TimePoint deadline,
    bool waitAllRanks) {
  const int size = handle_->size();
  std::string names, causes;
  int missing = 0;
  for (int rank = 1; rank < size && (missing == 0 || waitAllRanks); ++rank) {
    try {
      receive(rank, number, deadline);
    } catch (const Error& error) {
      TORCH_CHECK_WITH(
          DistBackendError,
          error.status().code() != ErrorCode::kCancelled,
          "dlslime: monitored_barrier: ",
          error.what());
      const auto name = std::to_string(rank);
      names += (missing == 0 ? "" : ", ") + name;
      causes +=
          (missing == 0 ? "" : "; ") + ("rank " + name) + ": " + error.what();
      ++missing;
    }
  }
  const auto verdict = missing == 0 ? std::string()
                                    : (waitAllRanks ? "Ranks " : "Rank ") +
          names + " failed to pass monitoredBarrier in " +
          std::to_string(limit.count()) + " ms";
  for (int rank = 1; rank < size; ++rank) {
    send(rank, number, verdict);
  }
  TORCH_CHECK_WITH(
      DistBackendError,
      verdict.empty(),
      "[Rank 0]: ",
      verdict,
      ". dlslime: ",
      causes);
}

void MonitoredBarrier::send(
    int peer,
    uint64_t number,
    const std::string& verdict) {
  ByteWriter writer;
  writer.number(number);
  writer.text(verdict.substr(0, kMostText));
  handle_->engine->send(
      *handle_->group,
      std::make_shared<NoteOperation>(
          Operation::Kind::kSend,
          peer,
          kBarrierTag,
          std::make_shared<Bytes>(writer.take())));
}

// Returns the text in the peer's message of barrier `number`. Skips messages of
// earlier barriers, which have failed on this rank. Throws Error if no message
// comes.
std::string
MonitoredBarrier::receive(int peer, uint64_t number, TimePoint deadline) {
  auto& engine = *handle_->engine;
  for (;;) {
    const auto bytes = std::make_shared<Bytes>(2 * kMostText);
    const auto operation = std::make_shared<NoteOperation>(
        Operation::Kind::kReceive, peer, kBarrierTag, bytes);
    engine.receive(*handle_->group, operation);
    const auto giveUp = [&](const std::string& what) {
      const auto link = engine.describeLink(*handle_->group, *operation);
      engine.abandon(
          *handle_->group,
          operation,
          Status(ErrorCode::kTimeout, what + " (" + link + ")"));
    };
    try {
      if (!waitHeedingSignals(engine, *operation, untilThen(deadline))) {
        giveUp("nothing has come in time");
      }
    } catch (...) { // raised by a handler of a signal
      giveUp("the wait was interrupted");
      throw;
    }
    if (!operation->status().ok()) {
      throw Error(operation->status());
    }
    ByteReader reader(ByteSpan(*bytes).first(operation->bytes()));
    const auto theirs = reader.number<uint64_t>();
    auto verdict = printable(reader.text());
    if (theirs >= number) {
      return verdict;
    }
  }
}

} // namespace dlslime
