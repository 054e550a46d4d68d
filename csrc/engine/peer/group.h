#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "engine/bootstrap/address_directory.h"
#include "engine/gpu/stream_gate.h"
#include "engine/peer/accept_queue.h"
#include "engine/peer/unprepared.h"
#include "engine/progress/completions.h"
#include "engine/two_sided/receiving_group.h"
#include "interface/rendezvous.h"
#include "interface/transport.h"

namespace dlslime {

class PeerChannel;

struct GroupOptions {
  std::string name; // for texts
  int rank = 0;
  int size = 1;
  milliseconds timeout{30 * 60 * 1000}; // for finding and connecting a peer
  RoutePolicy route = RoutePolicy::kAuto;
  FallbackPolicy fallback = FallbackPolicy::kWarn;
  std::shared_ptr<Rendezvous> rendezvous;
  // The peers' records are of their only lives: who is not in the group, or
  // does not answer there, will never be.
  bool oneLife = false;
  // Of a hub: each process that joins this group gets a group of its own, in
  // here,
  std::shared_ptr<AcceptQueue> acceptQueue;
  // which names the same.
  std::shared_ptr<AcceptQueue> hub;
  std::shared_ptr<void> carrierSource; // see interface/carrier.h
  int64_t joined = 0; // set by Engine::join(); as in the address record
};

// This process's part of one group: the way to each rank, and the matching of
// messages with receives. Everything under the engine's lock, but `options`
// and what is const.
class Group final : public ReceivingGroup {
 public:
  // How far we are in finding one rank.
  enum class LinkState : uint8_t {
    kUnresolved, // nothing has needed this rank yet
    kResolving, // the wire-up thread is looking for it
    kJoining, // connected; the peer was asked whether it is in this group
    kReady,
    kFailed,
  };
  struct Link {
    LinkState state = LinkState::kUnresolved;
    std::shared_ptr<PeerChannel> channel; // kJoining, kReady, kFailed
    uint32_t remoteGroup = 0; // kReady: the peer's id of this group
    Status failure;
    bool aborted = false; // kFailed: its rank has left amid things
    std::string problem; // kResolving: what the last look for it found
    OperationQueue waiting; // sends that were posted before kReady
    int brokenJoins = 0; // connections that broke in kJoining
    Counters counters;
    // Of the channel once there is one. The only member for any thread.
    std::atomic<MemoryRegistrar*> registrar{nullptr};
  };

  // `wake` the wire-up thread, until close().
  Group(
      uint32_t id,
      uint64_t epoch,
      GroupOptions options,
      Completions& done,
      std::function<void()> wake);

  uint32_t id() const override {
    return id_;
  }
  // The how-manieth life of this group in this process and store: both ends
  // of a pair must be in the same one.
  uint64_t epoch() const {
    return epoch_;
  }
  int rank() const override {
    return options_.rank;
  }
  int size() const {
    return options_.size;
  }
  const GroupOptions& options() const {
    return options_;
  }
  // For texts: "rank 1 of group "x"", or "the peer of "x"".
  std::string nameOf(int rank) const;
  bool closed() const {
    return closed_;
  }
  const Status& closeReason() const {
    return closeReason_;
  }
  // The one process and group that may join, of an endpoint that knows its
  // peer.
  void expect(Bytes instance, uint32_t group) {
    expected_ = {std::move(instance), group};
  }
  bool expects(const Bytes& instance, uint32_t group) const {
    return !expected_ || *expected_ == std::pair(instance, group);
  }
  // Nobody can join any more, since another group of this endpoint has its
  // peer.
  bool taken() const {
    return taken_;
  }
  void setTaken() {
    taken_ = true;
  }
  AddressDirectory& addresses() {
    return addresses_;
  }
  Matcher& matcher() override {
    return matcher_;
  }
  Link& link(int rank) {
    return links_[static_cast<size_t>(rank)];
  }
  // Any thread: what prepares memory for messages with this rank; null if
  // nothing needs to, or if the route to it is not known yet. From any source:
  // what some rank's needs.
  MemoryRegistrar* registrar(int rank) {
    return rank == Operation::kAnySource ? registrar_.load()
                                         : link(rank).registrar.load();
  }
  // What goes by the link is prepared by this one from now on; and what was
  // posted before and lacks that.
  void use(Link& link, MemoryRegistrar* registrar);
  Unprepared unprepared(int rank, MemoryRegistrar* registrar);
  uint32_t remoteId(int rank) override {
    return link(rank).remoteGroup;
  }
  Counters& counters(int rank) override {
    return link(rank).counters;
  }

  // A send, a receive or a Transfer; what is on memory of a GPU is held until
  // its stream has come there.
  void post(const OperationPtr& operation);
  // Posts what was held. True if there was any.
  bool postHeld();
  bool holds() const {
    return !held_.empty();
  }
  // After close(): for who cares for it when the group is gone.
  void leaveHeldTo(StreamGate& strays) {
    strays.adoptEnded(held_);
  }

  // The peer is in this group, in this life: what waited goes out.
  void linkReady(
      int rank,
      std::shared_ptr<PeerChannel> channel,
      uint32_t remoteGroup);
  // The connection broke before the peer said whether it is in the group:
  // another try, by its newest record, or the end after a few.
  void joinBroke(int rank, const Status& why);
  // Everything with this rank fails, now and later. Idempotent.
  void failLink(int rank, const Status& why);
  void makeReady(int source, uint32_t tag) override;
  // Any thread. Somebody waits so long, which may be longer than the group's
  // time-out: ranks are looked for until then.
  void awaitUntil(TimePoint when);
  TimePoint awaitedUntil() const {
    return TimePoint(Clock::duration(awaitedUntil_.load()));
  }
  // Begins to connect to the rank, for explain().
  void touch(int rank) {
    use(rank);
  }
  // The rank is in this process: no descriptor tells of its messages.
  bool reachesItself(int rank);
  // True once if a rank has come into use and needs the wire-up.
  bool takeUnresolved(std::vector<int>& ranks);

  // Ends or takes back one operation that has not reached a channel.
  bool cancelHere(const OperationPtr& operation, const Status& why);
  // Everything of this group that has not reached a channel ends with `why`;
  // what was to come is refused with it.
  void close(const Status& why);
  // Operations that have not ended, wherever they are.
  std::vector<OperationPtr> pending();

 private:
  void use(int rank);
  void useFor(const Operation& operation);
  void postNow(const OperationPtr& operation);
  void send(const OperationPtr& operation);
  void receive(const OperationPtr& operation);
  void end(OperationQueue queue, const Status& why);
  void finish(OperationPtr operation, const Status& why);
  void sendNow(Link& link, const OperationPtr& operation);
  void failIfAlone();

  const uint32_t id_;
  const uint64_t epoch_;
  const GroupOptions options_;
  Completions& completions_;
  AddressDirectory addresses_;
  StreamGate held_;
  Matcher matcher_;
  std::vector<Link> links_;
  std::atomic<MemoryRegistrar*> registrar_{nullptr}; // of some link
  std::vector<int> unresolved_;
  std::atomic<Clock::rep> awaitedUntil_{0};
  bool closed_ = false;
  bool taken_ = false;
  std::optional<std::pair<Bytes, uint32_t>> expected_;
  Status closeReason_;
};

} // namespace dlslime
