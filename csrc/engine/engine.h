#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/library/api.h"
#include "engine/core/forked_child.h"
#include "engine/one_sided/transfer.h"
#include "engine/record/times_report.h"
#include "interface/accelerator.h"
#include "interface/group_options.h"
#include "interface/operation.h"
#include "interface/peer_report.h"

namespace dlslime {

class Group;
struct AddressRecord;
struct EngineCore;

// The engine of a process: all groups of the process post to the engine, and
// only the engine talks to peers. Any thread may call any method. No call waits
// for a peer except wait(), leave(), keepGuest() of a closed hub, lingerAll(),
// deregister() and explain().
class DLSLIME_API Engine {
 public:
  // Returns the engine shared by the process's groups: made for the first
  // group, gone with the last. Throws Error (bad environment variables, no
  // descriptors left, or called in a forked child).
  static std::shared_ptr<Engine> acquire();
  // Returns the process's engine; null if no group has made an engine, or the
  // last group is gone.
  static std::shared_ptr<Engine> existing();

  explicit Engine(const Config& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

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
  void noteFetched();
  // Looks once for news, for callers that poll done() of an operation and never
  // wait.
  bool poke(const Operation* asked = nullptr);
  // Makes the background thread look: news is expected, and the caller neither
  // polls nor waits.
  void attend();
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

  // Returns the last operations, for the flight record of a job that hangs.
  FlightLog flightLog();
  // Returns the times and sizes of all operations that have succeeded.
  std::vector<OperationReport> operationReports();
  // Returns the number by which flight records name the group.
  static uint64_t keyOf(const Group& group);

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
  const Config& config() const;
  const std::string& socketName() const;

  // Returns the options that the group was joined with. Any time.
  static const GroupOptions& optionsOf(const Group& group);
  // Notes that a caller waits until `when`, which may be beyond the group's
  // time-out: the engine looks for ranks until then.
  static void awaitUntil(Group& group, TimePoint when);

  // Returns the IP addresses of this host for peers, of the interfaces chosen
  // by `wanted` (Config::interfaces). Throws Error{kUnavailable} if there are
  // none; `setting` names the variable that has `wanted`, for the text.
  static std::vector<std::string> ownAddresses(
      const std::string& wanted,
      const std::string& setting);

  // Returns all routes of the build, the preferred route first. Throws Error
  // (bad environment variables).
  static std::vector<RouteReport> routesOfMachine();
  // Returns the GPU holding the address, or MemoryView::kProcessor.
  static int deviceOf(const std::byte* address);

  // What the engine consists of, for tests.
  EngineCore& core() {
    return *core_;
  }

 private:
  const std::unique_ptr<EngineCore> core_;
};

} // namespace dlslime
