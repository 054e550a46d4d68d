#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/peer/unprepared.h"
#include "engine/progress/completions.h"
#include "engine/two_sided/receiving_group.h"

namespace dlslime {

class PeerChannel;

enum class LinkState : uint8_t {
  kUnresolved, // no operation has needed the rank yet
  kResolving, // the wire-up thread is looking for the rank
  kJoining, // connected, and a Join was sent
  kReady,
  kFailed,
};

// A group's way to a rank.
struct Link {
  LinkState state GUARDED_BY(kEngineLock) = LinkState::kUnresolved;
  // Null before kJoining.
  std::shared_ptr<PeerChannel> channel GUARDED_BY(kEngineLock);
  // In kReady: the peer's id of the group.
  uint32_t remoteGroup GUARDED_BY(kEngineLock) = 0;
  // In kFailed: why, and whether the rank has aborted the group.
  Status failure GUARDED_BY(kEngineLock);
  bool aborted GUARDED_BY(kEngineLock) = false;
  // In kResolving: the result of the last look.
  std::string problem GUARDED_BY(kEngineLock);
  // Sends and transfers posted before kReady.
  OperationQueue waiting GUARDED_BY(kEngineLock);
  // Connections that broke before Joined came.
  int brokenJoins GUARDED_BY(kEngineLock) = 0;
  Counters counters GUARDED_BY(kEngineLock);
  // Registrar of the channel, once a channel is known. The only member for any
  // thread.
  std::atomic<MemoryRegistrar*> registrar{nullptr};

  // Sends a send or Transfer by this rank over a ready link.
  void send(const OperationPtr& operation, int ownRank) REQUIRES(kEngineLock);
};

// The links of a group. Under the engine's lock, except methods for any thread.
class Links {
 public:
  Links(int ownRank, int size)
      : ownRank_(ownRank), links_(static_cast<size_t>(size)) {}

  int size() const {
    return static_cast<int>(links_.size());
  }
  Link& at(int rank) REQUIRES(kEngineLock) {
    return links_[static_cast<size_t>(rank)];
  }
  // Returns the registrar that prepares memory for messages with the rank, or
  // for kAnySource a registrar of some rank. Null if memory needs no preparing
  // or the route is not known yet. Any thread.
  MemoryRegistrar* registrar(int rank) {
    return rank == Operation::kAnySource
        ? registrar_.load()
        : links_[static_cast<size_t>(rank)].registrar.load();
  }
  // Makes threads that post to the link prepare their operations with
  // `registrar` from now on.
  void use(Link& link, MemoryRegistrar* registrar) REQUIRES(kEngineLock);
  // Has the wire-up thread look for a rank, or for all, unless that was done.
  void resolve(int rank) REQUIRES(kEngineLock);
  void resolveFor(const Operation& operation) REQUIRES(kEngineLock);
  // Moves the ranks that have come into use, and need the wire-up thread, to
  // `ranks`. True if any were moved.
  bool takeUnresolved(std::vector<int>& ranks) REQUIRES(kEngineLock);
  // True if the rank is in this process: no descriptor signals messages to
  // oneself.
  bool reachesItself(int rank) REQUIRES(kEngineLock);
  // Returns a failed link if the links to all other ranks have failed, else
  // null.
  const Link* failedIfAll() REQUIRES(kEngineLock);
  // Returns the channels of all links, each once.
  std::vector<PeerChannel*> channels() REQUIRES(kEngineLock);

 private:
  const int ownRank_;
  std::vector<Link> links_;
  std::atomic<MemoryRegistrar*> registrar_{nullptr}; // of some link
  std::vector<int> unresolved_ GUARDED_BY(kEngineLock);
};

} // namespace dlslime
