#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/connect/wireup.h"
#include "engine/peer/group_report.h"
#include "engine/progress/copier.h"
#include "engine/progress/progress.h"
#include "engine/state/engine_state.h"

namespace dlslime {

class EngineLock;

// The engine of a process: all groups of the process post to the engine, and
// only the engine talks to peers. Any thread may call any method. No call waits
// for a peer except wait(), leave(), keepGuest() of a closed hub, lingerAll(),
// deregister() and explain().
class Engine final : public ProgressSource {
 public:
  // Returns the engine shared by the process's groups: made for the first
  // group, gone with the last. Throws Error (bad environment variables, no
  // descriptors left, or called in a forked child).
  static std::shared_ptr<Engine> acquire();
  // Returns the process's engine; null if no group has made an engine, or the
  // last group is gone.
  static std::shared_ptr<Engine> existing();

  explicit Engine(const Config& config);
  ~Engine() override;

  // Joins a group: publishes the rank's address. Throws Error if the store
  // fails.
  std::shared_ptr<Group> join(GroupOptions options);
  // Leaves a group: waits up to Config::linger until sends and transfers have
  // ended and the ranks of a new group have read the rendezvous; then aborts
  // the group and tells the peers.
  void leave(Group& group);
  // Takes back a guest that the owner of a hub has dropped: the group stays
  // until the guest or the hub leaves.
  void keepGuest(const std::shared_ptr<Group>& guest);
  // Sets the peer of an endpoint: rank `rank` of `group`, by the peer's record;
  // `spare` gets no peer. Throws Error if a different endpoint has connected
  // before.
  void pair(Group& group, int rank, const AddressRecord& record, Group& spare);
  // Waits for all groups as leave() does, with a single deadline, and then
  // until sent messages have gone out: for the end of the process. No
  // rendezvous is asked afterwards.
  void lingerAll();
  // Ends all pending and all future operations of the group with `why`.
  void abort(Group& group, const Status& why);

  // Posts a send, which always ends (see Operation). For memory of a GPU,
  // `onDevice` has the caller's stream.
  void send(Group& group, const OperationPtr& operation);
  // Posts a receive, under the rules of send().
  void receive(Group& group, const OperationPtr& operation);
  // Registers memory for one-sided transfers by this process and by processes
  // that have the region's handle. The memory must stay until deregister(), and
  // `keeper` is dropped then.
  RegionPtr registerMemory(
      MemoryView view,
      std::string name,
      std::shared_ptr<void> keeper);
  // Returns once nothing touches the memory any more. Throws Error, and the
  // region stays, if transfers of this process use the region
  // (kInvalidArgument) or if a peer or device still has it at the deadline
  // (kTimeout).
  void deregister(const RegionPtr& region, TimePoint deadline);
  // Posts a transfer, which always ends. With local memory of a GPU, `onDevice`
  // has the caller's stream, and the transfer begins behind the earlier work of
  // the stream.
  void transfer(Group& group, const TransferPtr& transfer);
  // Returns true once the operation is done; false at the deadline, with the
  // operation still pending.
  bool wait(const Operation& operation, Deadline deadline);
  // Holds a stream back until the operation has ended, well or badly; the
  // operation keeps the returned block, too. Null: the stream can't be made to
  // wait, and the caller has to wait(). Throws Error.
  std::shared_ptr<Accelerator::StreamBlock> blockStream(
      const DeviceStream& stream,
      Operation& operation);
  // False: the engine's lock was not free within `patience`, because a call to
  // a GPU's driver does not return.
  bool responds(milliseconds patience);
  // Notes that the caller is about to read received bytes.
  void noteFetched() NO_THREAD_SAFETY_ANALYSIS { // writes an atomic alone
    state_.completions.noteFetched();
  }
  // Looks once for news, for callers that poll done() of an operation and never
  // wait.
  bool poke(const Operation* asked = nullptr) {
    return progress_.look(asked);
  }
  // Makes the background thread look: news is expected, and the caller neither
  // polls nor waits.
  void attend() {
    progress_.attend();
  }
  // Cancels an operation, which ends with `why`, or well if the call comes too
  // late. The operation ends only when nothing touches its memory any more:
  // wait() for the end.
  void cancel(Group& group, const OperationPtr& operation, const Status& why);
  // Ends an operation now, for when a cancelled operation does not end in time
  // because the peer is stuck. The memory is kept alive until the peer lets go.
  void abandon(Group& group, const OperationPtr& operation, const Status& why);

  // Returns the memory held by the connections to the group's peers, perhaps
  // shared with further groups: registrations, each counted once, and buffers.
  // The pinned memory for all GPUs is included.
  MemoryUse memoryUse(Group& group);
  // Gives unused memory back. Throws Error{kUnusable} while operations of the
  // group are pending.
  void trim(Group& group);

  // Returns the peer's pid if the peer is on this host and its memory may be
  // read, else 0. Throws Error if the peer has failed or is not connected.
  uint32_t peerPid(Group& group, int rank);
  std::vector<PeerReport> report(Group& group);
  // Connects to the rank if need be and reports. Calls `meanwhile` from time to
  // time. Throws Error if connecting fails, and any exception of `meanwhile`.
  PeerReport explain(
      Group& group,
      int rank,
      TimePoint deadline,
      const std::function<void()>& meanwhile = {});
  // Describes the state of the operation's link for time-out texts: "the peer
  // is connected by shm, no matching send was seen".
  std::string describeLink(Group& group, const Operation& operation);
  // Lists pending operations of the group, at most `most`, separated by commas.
  std::string describePending(Group& group, size_t most);

  // True if a rank of the group has died, has left or could not be reached.
  bool hasFailedPeer(Group& group);
  // True if a rank has aborted the group: pending collective operations never
  // complete.
  bool hasAbortedPeer(Group& group);
  // Describes the failed ranks: "rank 2: its process has ended ...; rank 3:
  // ..."; empty if no rank has failed.
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
  // giveCopy(), enterPrepared() and afterPost() leave or enter a lock of their
  // callers, of which the analysis knows nothing inside of them.
  bool isClosed(Group& group);
  bool allSent();
  void linger(Group& group, TimePoint deadline);
  void cancelLocked(
      Group& group,
      const OperationPtr& operation,
      const Status& why) REQUIRES(theEngineLock);
  bool lookAtAll() REQUIRES(theEngineLock);
  bool lookWhileAwaiting(const Operation& operation) REQUIRES(theEngineLock);
  bool lookFor(const Operation& operation, int most = kMessagesPerPoll)
      REQUIRES(theEngineLock);
  bool lookAtRest(bool any) REQUIRES(theEngineLock);
  PeerChannel* channelOf(const Operation& operation) REQUIRES(theEngineLock);
  void runCopies(CopyJob job, std::shared_ptr<PeerChannel> channel);
  bool giveCopy(EngineLock& lock)
      REQUIRES(theEngineLock) NO_THREAD_SAFETY_ANALYSIS;
  std::optional<ClaimedCopy> finishCopy(const ClaimedCopy& made, bool more);
  void prepare(Group& group, Operation& operation);
  void prepareMemory(Group& group, Operation& operation);
  void enterPrepared(EngineLock& lock, Group& group, Operation& operation)
      REQUIRES(theEngineLock) NO_THREAD_SAFETY_ANALYSIS;
  void meetStream(Operation& operation);
  bool lookAtGpus(Accelerator& gpus) REQUIRES(theEngineLock);
  void watchGpus(bool held) REQUIRES(theEngineLock);
  void drainGpus();
  void registerHere(Group& group, const Transfer& transfer);
  void recall(Region& region) REQUIRES(theEngineLock);
  void beginDeregister(Region& region) REQUIRES(theEngineLock);
  std::vector<std::string> borrowersOf(const Region& region)
      REQUIRES(theEngineLock);
  void requireGivenBack(Region& region) REQUIRES(theEngineLock);
  void recallAll();
  void afterPost(EngineLock& lock, Group& group, const Operation& operation)
      REQUIRES(theEngineLock) NO_THREAD_SAFETY_ANALYSIS;
  void unshareIdleLocked(Accelerator& gpus) REQUIRES(theEngineLock);
  std::set<MemoryRegistrar*> visitLocked(
      Group& group,
      const std::function<void(PeerChannel&)>& visit) REQUIRES(theEngineLock);

  EngineState state_;
  uint64_t sends_ GUARDED_BY(theEngineLock) = 0;
  Progress progress_;
  Copier copier_;
  WireUp wireUp_;
};

// Throws Error{kUnusable} in a forked child.
void refuseInForkedChild();

} // namespace dlslime
