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

// A group's way to a rank. Under the engine's lock.
struct Link {
  LinkState state = LinkState::kUnresolved;
  std::shared_ptr<PeerChannel> channel; // null before kJoining
  uint32_t remoteGroup = 0; // in kReady: the peer's id of the group
  Status failure;
  bool aborted = false; // in kFailed: the rank has aborted the group
  std::string problem; // in kResolving: result of the last look
  OperationQueue waiting; // sends and transfers posted before kReady
  int brokenJoins = 0; // connections that broke before Joined came
  Counters counters;
  // Registrar of the channel, once a channel is known. The only member for any
  // thread.
  std::atomic<MemoryRegistrar*> registrar{nullptr};

  // Sends a send or Transfer by this rank over a ready link.
  void send(const OperationPtr& operation, int ownRank);
};

// The links of a group. Under the engine's lock, except methods for any thread.
class Links {
 public:
  Links(int ownRank, int size)
      : ownRank_(ownRank), links_(static_cast<size_t>(size)) {}

  int size() const {
    return static_cast<int>(links_.size());
  }
  Link& at(int rank) {
    return links_[static_cast<size_t>(rank)];
  }
  // Returns the registrar that prepares memory for messages with the rank, or
  // for kAnySource a registrar of some rank. Null if memory needs no preparing
  // or the route is not known yet. Any thread.
  MemoryRegistrar* registrar(int rank) {
    return rank == Operation::kAnySource ? registrar_.load()
                                         : at(rank).registrar.load();
  }
  // Makes threads that post to the link prepare their operations with
  // `registrar` from now on.
  void use(Link& link, MemoryRegistrar* registrar);
  // Has the wire-up thread look for a rank, or for all, unless that was done.
  void resolve(int rank);
  void resolveFor(const Operation& operation);
  // Moves the ranks that have come into use, and need the wire-up thread, to
  // `ranks`. True if any were moved.
  bool takeUnresolved(std::vector<int>& ranks);
  // True if the rank is in this process: no descriptor signals messages to
  // oneself.
  bool reachesItself(int rank);
  // Returns a failed link if the links to all other ranks have failed, else
  // null.
  const Link* failedIfAll();
  // Returns the channels of all links, each once.
  std::vector<PeerChannel*> channels();

 private:
  const int ownRank_;
  std::vector<Link> links_;
  std::atomic<MemoryRegistrar*> registrar_{nullptr}; // of some link
  std::vector<int> unresolved_;
};

} // namespace dlslime
