#pragma once

#include <atomic>
#include <memory>

#include "engine/engine.h"

namespace dlslime {

// What the operations of one group share, and need after the group's object may
// have gone: keeps the engine alive while any of them is.
struct GroupHandle {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Group> group;
  std::atomic<std::chrono::milliseconds> timeout;
  std::atomic<bool> suspended{false};

  // Throws Error{kUnusable} while it must not be used: suspended, or in
  // a forked child.
  void requireUsable() const;
};

// A message from, or into, bytes of its own.
class NoteOperation final : public Operation {
 public:
  NoteOperation(Kind kind, int peer, uint32_t tag, std::shared_ptr<Bytes> bytes)
      : Operation(kind, peer, tag, {bytes->data(), bytes->size()}),
        bytes_(std::move(bytes)) {}

  // Tags of notes: 2^31 and more are our own. What a note is for is added.
  static constexpr uint32_t kFirstTag = 0xc0000000;
  std::string describe() const override;

 private:
  const std::shared_ptr<Bytes> bytes_;
};

// What a cancelled operation may take to let go of its memory before we stop
// waiting for that: a peer answers in microseconds unless it is stuck.
constexpr milliseconds kGrace{1000};

// The operation was not done in time: it ends, with all that is known of why.
void takeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit);

// The current stream of the operation's GPU goes on once it is over, well or
// badly; after `limit` it is taken back. Returns at once, but where streams
// can't wait for processors: then as waitOrTakeBack().
void waitByStream(
    const std::shared_ptr<GroupHandle>& handle,
    const OperationPtr& operation,
    const DeviceStream& stream,
    milliseconds limit);

// Python runs handlers of signals there alone.
bool onMainThread();
// Runs Python's handlers of signals that have come, where the caller is on the
// main thread, and throws what one raises. Takes the GIL.
void heedSignals();
// The same from time to time, for a caller that looks more often.
std::function<void()> heedingSignals();

// Whether the operation is done; false: not within `limit`. Heeds signals.
bool waitHeedingSignals(
    Engine& engine,
    const Operation& operation,
    milliseconds limit);

// Whether Python's handlers of signals run during a wait of its main thread:
// what one throws (Ctrl-C) is thrown there, and the operation goes on. Left for
// later by who holds a lock that a handler may want, or would lose count.
enum class Signals : uint8_t { kHeed, kLeave };

// Returns once the operation is done. After `limit` it is taken back: it ends,
// and its memory is the caller's again.
void waitOrTakeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit,
    Signals signals = Signals::kHeed);

} // namespace dlslime
