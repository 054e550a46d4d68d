#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/memory/fault.h"
#include "base/slab.h"
#include "engine/gpu/staging.h"
#include "engine/one_sided/transfer.h"
#include "engine/progress/engine_mutex.h"
#include "interface/connection.h"

namespace dlslime {

// Part of a transfer under way at the initiator, from start to end.
struct ActivePart {
  enum class State : uint8_t {
    kResolving, // awaits the owner's answer, or registration of local memory
    kMoving, // by the route
    kByGpu, // by a GPU of ours; can't be stopped
    kFetching, // in GetData messages
    kPutting, // in Put messages
  };
  struct Target {
    uint32_t group; // the peer's id of the group
    uint32_t source; // our rank in the group
  };
  struct Position {
    size_t piece = 0;
    uint64_t offset = 0; // in the piece, in bytes
  };

  TransferPtr transfer;
  size_t index = 0; // of the part in the transfer
  Target target{};
  State state = State::kResolving;
  Position at; // kFetching, kPutting: place of the next byte
  uint64_t arrived = 0; // kFetching: bytes arrived
  size_t asked = 0; // kFetching: number of pieces asked for
  uint64_t askedBytes = 0; // kFetching: bytes of the pieces asked for
  // kPutting from a GPU: bytes on the way through pinned memory.
  std::unique_ptr<StagedSource> staged = nullptr;
  Position toStage; // of the next byte to be staged

  const Transfer::Part& part() const {
    return transfer->parts()[index];
  }
  // Returns whether bytes go in messages.
  bool inFrames() const {
    return state == State::kFetching || state == State::kPutting;
  }
  // Returns whether all messages of this end have gone.
  bool allSent() const {
    return (state == State::kFetching ? asked : at.piece) ==
        part().pieces.size();
  }
};

// Parts under way, by the ids told to the peer.
using ActiveParts = Slab<ActivePart>;

// Ids of parts that wait, each for one event: the longest-waiting part first.
template <typename Event>
class WaitingParts {
 public:
  void add(const Event& event, uint64_t id) {
    waiting_[event].push_back(id);
  }
  // Takes out the parts that wait for `event`, and visits the parts not begun
  // yet. A visited part may be added for the event again.
  template <typename Visit>
  void take(const Event& event, ActiveParts& parts, const Visit& visit)
      REQUIRES(kEngineLock) {
    const auto waiting = waiting_.extract(event);
    if (waiting.empty()) {
      return;
    }
    for (const auto id : waiting.mapped()) {
      const auto* const active = parts.find(id);
      if (active != nullptr && active->state == ActivePart::State::kResolving) {
        visit(id, *active);
      }
    }
  }
  void clear() {
    waiting_.clear();
  }

 private:
  std::map<Event, std::vector<uint64_t>> waiting_;
};

// Ends parts.
class PartOwner {
 public:
  virtual void end(uint64_t id, const Status& status) = 0;

 protected:
  ~PartOwner() = default;
};

// The connection, as transfers may use it.
struct TransferRoute {
  Connection* connection = nullptr; // null while being replaced
  bool severed = false; // nothing new begins until the replacement

  bool usable() const {
    return connection != nullptr && !severed;
  }
};

// Returns a status naming the memory at either end that can't be touched;
// passes on a `fault` with a different cause.
Status namingMemory(const ActivePart& part, const Status& fault);

} // namespace dlslime
