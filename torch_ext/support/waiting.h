#pragma once

#include <atomic>
#include <memory>

#include "engine/engine.h"

namespace dlslime {

// Longest delay of a signal's handler by a waiting main thread.
constexpr milliseconds kSignalsEvery{200};

// State shared by the operations of a group. Operations may outlive the group's
// object, and keep the engine alive through the handle.
struct GroupHandle {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Group> group;
  std::atomic<std::chrono::milliseconds> timeout;
  std::atomic<bool> suspended{false};

  const GroupOptions& options() const {
    return Engine::optionsOf(*group);
  }
  int rank() const {
    return options().rank;
  }
  int size() const {
    return options().size;
  }
  // Throws Error{kUnusable} if the group is suspended, or in a forked child.
  void requireUsable() const;
};

// A message that owns the bytes sent or received.
class NoteOperation final : public Operation {
 public:
  NoteOperation(Kind kind, int peer, uint32_t tag, std::shared_ptr<Bytes> bytes)
      : Operation(kind, peer, tag, {bytes->data(), bytes->size()}),
        bytes_(std::move(bytes)) {}

  // First tag of notes, before the kind of note is added. All tags from 2^31 up
  // are the library's own.
  static constexpr uint32_t kFirstTag = 0xc0000000;
  std::string describe() const override;

 private:
  const std::shared_ptr<Bytes> bytes_;
};

// Longest wait for a cancelled operation to let go of the memory. A peer
// answers in microseconds unless stuck.
constexpr milliseconds kGrace{1000};

// Ends an operation that was not done in time, with a status that tells all
// that is known of the reason.
void takeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit);

// Keeps `stream` back until the operation is over, well or badly; after `limit`
// the operation is taken back. Returns at once, except where streams cannot
// wait for processors; then waits like waitOrTakeBack().
void waitByStream(
    const std::shared_ptr<GroupHandle>& handle,
    const OperationPtr& operation,
    const DeviceStream& stream,
    milliseconds limit);

// Whether the caller is on the main thread, the only thread that runs Python's
// signal handlers.
bool onMainThread();
// On the main thread, runs Python's handlers of pending signals, and throws the
// exception of a handler. Takes the GIL.
void heedSignals();
// Returns a function that calls heedSignals() every kSignalsEvery, for callers
// that look more often.
std::function<void()> heedingSignals();

// Waits for the operation while heeding signals. Returns false if the operation
// is not done within `limit`.
bool waitHeedingSignals(
    Engine& engine,
    const Operation& operation,
    milliseconds limit);

// Whether Python's signal handlers run during a wait of the main thread. The
// exception of a handler (Ctrl-C) is thrown from the wait, and the operation
// goes on. A caller leaves signals for later if a handler may want a lock that
// the caller holds, or if an exception would make the caller lose count.
enum class Signals : uint8_t { kHeed, kLeave };

// Returns once the operation is done. After `limit` the operation is taken
// back: the operation ends, and the memory is the caller's again.
void waitOrTakeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit,
    Signals signals = Signals::kHeed);

} // namespace dlslime
