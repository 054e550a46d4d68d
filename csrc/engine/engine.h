#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/connect/wireup.h"
#include "engine/progress/copier.h"
#include "engine/progress/progress.h"
#include "engine/state/engine_state.h"

namespace dlslime {

class EngineLock;

// The traffic and the way to one rank, for people.
struct PeerReport {
  int rank = 0;
  std::string route, copy;
  std::string devices; // "mlx5_0:1, mlx5_1:1"
  uint32_t replaced = 0; // connections that were lost, and replaced
  std::vector<RejectedRoute> rejected;
  PeerIdentity peer;
  Counters counters;
  size_t pendingSends = 0, pendingReceives = 0;
};

// A process's engine: every group of the process posts to it, and it alone
// talks to other processes. Any thread may call anything; nothing blocks but
// wait() and leave().
class Engine final : public ProgressSource {
 public:
  // The engine that the process's groups share: made for the first, gone with
  // the last. Throws Error (bad environment variables, no descriptors left,
  // or called in a forked child).
  static std::shared_ptr<Engine> acquire();
  // The same if there is one.
  static std::shared_ptr<Engine> existing();

  explicit Engine(const Config& config);
  ~Engine() override;

  // Publishes this rank's address. Throws Error if the store fails.
  std::shared_ptr<Group> join(GroupOptions options);
  // Lets sends finish, and the other ranks of a new group read what is in its
  // rendezvous, for up to Config::linger, then abort(); tells peers.
  void leave(Group& group);
  // The owner of a hub has dropped this guest: it stays until it leaves, or the
  // hub does.
  void keepGuest(const std::shared_ptr<Group>& guest);
  // The peer of an endpoint is rank `rank` of `group`, by this record; nobody
  // is in `spare`. Throws Error: another one has come before it.
  void pair(Group& group, int rank, const AddressRecord& record, Group& spare);
  // The process is about to end: what leave() does first, for all groups, one
  // moment for all. No rendezvous is asked afterwards.
  void lingerAll();
  // Ends all that is pending in the group, and all to come, with `why`.
  void abort(Group& group, const Status& why);

  // The operation ends sooner or later; see Operation. Of one on memory of a
  // GPU, `onDevice` has the caller's stream.
  void send(Group& group, const OperationPtr& operation);
  void receive(Group& group, const OperationPtr& operation);
  // Memory for one-sided transfers by this process and by others, who need its
  // handle; it must stay until deregister(). `keeper` is dropped then.
  RegionPtr registerMemory(
      MemoryView view,
      std::string name,
      std::shared_ptr<void> keeper);
  // Returns once nobody touches the memory any more. Throws Error, and the
  // region stays: transfers of ours use it (kInvalidArgument), or a peer's do
  // until the deadline (kTimeout).
  void deregister(const RegionPtr& region, TimePoint deadline);
  // Ends sooner or later, as a send. With local memory of a GPU, `onDevice` has
  // the caller's stream, behind which it begins.
  void transfer(Group& group, const TransferPtr& transfer);
  // True once done; false at the deadline, with the operation still pending.
  bool wait(const Operation& operation, Deadline deadline);
  // Keeps a stream back until the operation has ended, well or badly, which
  // keeps what is returned as well. Null: it can't be; wait(). Throws Error.
  std::shared_ptr<Accelerator::StreamBlock> blockStream(
      const DeviceStream& stream,
      Operation& operation);
  // False: nobody gets to it, since a call to the GPU's driver does not return.
  bool responds(milliseconds patience);
  // The caller is about to read what has come.
  void noteFetched() {
    state_.completions.noteFetched();
  }
  // One look for news, for callers that ask done() of this operation and never
  // wait.
  bool poke(const Operation* asked = nullptr) {
    return progress_.look(asked);
  }
  // Somebody is to be told of what comes, and neither asks nor waits.
  void attend() {
    progress_.attend();
  }
  // Takes the operation back; it ends with `why`, or well if it was too late.
  // It has ended when its memory is no longer touched: wait() for that.
  void cancel(Group& group, const OperationPtr& operation, const Status& why);
  // For when that does not come in time (the peer is stuck): ends it now, and
  // keeps the memory alive until the peer lets go of it.
  void abandon(Group& group, const OperationPtr& operation, const Status& why);

  // What the connections of this group's peers hold, which other groups may
  // share: registrations, each counted once, and buffers.
  MemoryUse memoryUse(Group& group);
  // Gives back what holds nothing. Throws Error{kUnusable} while
  // operations of the group are pending.
  void trim(Group& group);

  // Of a process of this host whose memory we may read; 0: it is none. Throws
  // Error: it has failed, or is not connected.
  uint32_t peerPid(Group& group, int rank);
  std::vector<PeerReport> report(Group& group);
  // Connects to the rank if need be; throws Error if that fails, and what
  // `meanwhile` throws, which is called from time to time.
  PeerReport explain(
      Group& group,
      int rank,
      TimePoint deadline,
      const std::function<void()>& meanwhile = {});
  // "peer connected by shm, no matching send seen": for time-out texts.
  std::string describeLink(Group& group, const Operation& operation);
  // One line for each pending operation of the group, at most `most`.
  std::string describePending(Group& group, size_t most);

  // Some rank of the group has died or left.
  bool hasFailedPeer(Group& group);
  // One has left amid things: what all do together comes to no end.
  bool hasAbortedPeer(Group& group);
  // "rank 2: its process has ended ...; ...", of those; empty: none.
  std::string describeFailures(Group& group);
  size_t connections();
  size_t groups();
  const Config& config() const {
    return state_.config;
  }
  const std::string& socketName() const {
    return wireUp_.socketName();
  }

  bool step(const Operation* awaited) override;
  TimePoint lookAgain() override {
    return copier_.lookAgain();
  }
  bool help() override;
  bool endsSoon() override;
  bool mustLook() override {
    return state_.watchesGpus.load(std::memory_order_seq_cst);
  }
  bool beginSleep() override;
  void endSleep() override;
  void onReady(const std::vector<uint64_t>& tokens) override;

 private:
  bool isClosed(Group& group);
  bool allSent();
  void linger(Group& group, TimePoint deadline);
  void
  cancelLocked(Group& group, const OperationPtr& operation, const Status& why);
  bool lookLocked(int most = kMessagesPerPoll);
  const PeerChannel* channelOf(const Operation& operation);
  void runCopies(CopyJob job, std::shared_ptr<PeerChannel> channel);
  bool giveCopy(EngineLock& lock);
  std::optional<ClaimedCopy> finishCopy(const ClaimedCopy& made, bool more);
  void prepare(Group& group, Operation& operation);
  void prepareMemory(Group& group, Operation& operation);
  void enterPrepared(EngineLock& lock, Group& group, Operation& operation);
  void meetStream(Operation& operation);
  bool lookAtGpus(Accelerator& gpus);
  void watchGpus(bool held);
  void drainGpus();
  void registerHere(Group& group, const Transfer& transfer);
  void recall(Region& region);
  void beginDeregister(Region& region);
  std::vector<std::string> borrowersOf(const Region& region);
  void requireGivenBack(Region& region);
  void recallAll();
  void afterPost(EngineLock& lock, Group& group, const Operation& operation);
  PeerReport reportOne(Group& group, int rank);
  void unshareIdleLocked(Accelerator& gpus);
  std::set<MemoryRegistrar*> visitLocked(
      Group& group,
      const std::function<void(PeerChannel&)>& visit);

  EngineState state_;
  uint64_t sends_ = 0; // under the lock
  Progress progress_;
  Copier copier_;
  WireUp wireUp_;
};

// Throws Error{kUnusable} in a forked child.
void refuseInForkedChild();

} // namespace dlslime
