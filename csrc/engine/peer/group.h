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
#include "engine/peer/links.h"
#include "engine/peer/unprepared.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/receiving_group.h"
#include "interface/group_options.h"
#include "interface/rendezvous.h"
#include "interface/transport.h"

namespace dlslime {

// This process's part of a group: a link to each rank, and the matching of
// messages with receives. Under the engine's lock, except options(), const
// members and methods for any thread.
class Group final : public ReceivingGroup {
 public:
  using LinkState = dlslime::LinkState;

  // `wake` wakes the wire-up thread, and is not called after close().
  Group(
      uint32_t id,
      uint64_t epoch,
      GroupOptions options,
      Completions& done,
      std::function<void()> wake);

  uint32_t id() const override {
    return id_;
  }
  // Incarnation number of this group in this process and store. Both ends of a
  // pair must be in the same incarnation.
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
  // Returns, for messages to users, "rank 1 of group "x"" or "the peer of "x"".
  std::string nameOf(int rank) const override;
  bool closed() const REQUIRES(kEngineLock) {
    return closed_;
  }
  const Status& closeReason() const REQUIRES(kEngineLock) {
    return closeReason_;
  }
  // Lets only the given process and group join: the peer of this endpoint.
  void expect(Bytes instance, uint32_t group) REQUIRES(kEngineLock) {
    expected_ = {std::move(instance), group};
  }
  bool expects(const Bytes& instance, uint32_t group) const
      REQUIRES(kEngineLock) {
    return !expected_ || *expected_ == std::pair(instance, group);
  }
  // True if no process can join any more, since the other group of the endpoint
  // has the peer.
  bool taken() const REQUIRES(kEngineLock) {
    return taken_;
  }
  void setTaken() REQUIRES(kEngineLock) {
    taken_ = true;
  }
  // Any thread.
  AddressDirectory& addresses() {
    return addresses_;
  }
  Matcher& matcher() REQUIRES(kEngineLock) override {
    return matcher_;
  }
  // Any thread, for the functions of Links that say the same.
  Links& links() {
    return links_;
  }
  Link& link(int rank) REQUIRES(kEngineLock) {
    return links_.at(rank);
  }
  uint32_t remoteId(int rank) REQUIRES(kEngineLock) override {
    return link(rank).remoteGroup;
  }
  Counters& counters(int rank) REQUIRES(kEngineLock) override {
    return link(rank).counters;
  }

  // Posts a send, receive or Transfer. An operation on memory of a GPU is held
  // until the stream has come to the operation.
  void post(const OperationPtr& operation) REQUIRES(kEngineLock);
  // Posts held operations whose streams have come to them. True if any were.
  bool postHeld() REQUIRES(kEngineLock);
  bool holds() const REQUIRES(kEngineLock) {
    return !held_.empty();
  }
  // After close(), hands ended operations that streams may still touch to
  // `strays`, which outlives the group.
  void leaveHeldTo(StreamGate& strays) REQUIRES(kEngineLock) {
    strays.adoptEnded(held_);
  }

  // Makes the link ready and sends the waiting operations: the peer has proved
  // to be in this incarnation of the group.
  void linkReady(
      int rank,
      std::shared_ptr<PeerChannel> channel,
      uint32_t remoteGroup) REQUIRES(kEngineLock);
  // Handles the loss of a connection before Joined came: looks for the rank
  // again, by the newest address record, or fails the link after several
  // losses.
  void joinBroke(int rank, const Status& why) REQUIRES(kEngineLock);
  // Fails all operations with the rank, now and later. Idempotent.
  void failLink(int rank, const Status& why) REQUIRES(kEngineLock);
  void makeReady(int source, uint32_t tag) REQUIRES(kEngineLock) override;
  // Notes that a caller waits until `when`, which may be beyond the group's
  // time-out: the wire-up thread looks for ranks until then. Any thread.
  void awaitUntil(TimePoint when);
  TimePoint awaitedUntil() const {
    return TimePoint(Clock::duration(awaitedUntil_.load()));
  }
  // Ends an operation that has not reached a channel. False: the operation is
  // elsewhere.
  bool cancelHere(const OperationPtr& operation, const Status& why)
      REQUIRES(kEngineLock);
  // Ends with `why` all operations that have not reached a channel, and refuses
  // later operations.
  void close(const Status& why) REQUIRES(kEngineLock);
  // Returns all operations that have not ended, in the group and in channels.
  std::vector<OperationPtr> pending() REQUIRES(kEngineLock);

 private:
  void postNow(const OperationPtr& operation) REQUIRES(kEngineLock);
  void send(const OperationPtr& operation) REQUIRES(kEngineLock);
  void receive(const OperationPtr& operation) REQUIRES(kEngineLock);
  void end(OperationQueue queue, const Status& why) REQUIRES(kEngineLock);
  void finish(OperationPtr operation, const Status& why) REQUIRES(kEngineLock);
  void failIfAlone() REQUIRES(kEngineLock);

  const uint32_t id_;
  const uint64_t epoch_;
  const GroupOptions options_;
  Completions& completions_;
  AddressDirectory addresses_;
  StreamGate held_;
  Matcher matcher_;
  Links links_;
  std::atomic<Clock::rep> awaitedUntil_{0};
  bool closed_ = false;
  bool taken_ = false;
  std::optional<std::pair<Bytes, uint32_t>> expected_;
  Status closeReason_;
};

// Returns the operations with the rank that are posted and not prepared with
// `registrar`, after Links::use() of the registrar.
Unprepared findUnprepared(Group& group, int rank, MemoryRegistrar* registrar)
    REQUIRES(kEngineLock);

} // namespace dlslime
