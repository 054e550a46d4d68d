#pragma once

#include <vector>

#include "engine/one_sided/frame_receiver.h"
#include "engine/one_sided/frame_sender.h"
#include "engine/one_sided/remote_regions.h"
#include "engine/one_sided/transfer_finisher.h"
#include "engine/progress/engine_mutex.h"

namespace dlslime {

// Initiator's half of one-sided transfers with one peer (docs/protocol.md,
// "One-sided transfers"). Before the first use of a region, the owner is asked
// for the way to reach the memory. Then the route moves the bytes; where the
// route can't, messages carry the bytes. Transfers may be repeated until over:
// after the loss of a connection, the next connection begins anew what the lost
// route was moving. Under the engine's lock.
class RmaInitiator final : public OperationHolder, private PartOwner {
 public:
  using Target = ActivePart::Target;

  RmaInitiator(
      Connection& connection,
      Outbound& out,
      PeerGpus& gpus,
      Completions& completions,
      RegionTable& regions,
      const PeerIdentity& peer,
      TransferFinisher::SendNote sendNote)
      : route_{&connection},
        gpus_(gpus),
        completions_(completions),
        localRegions_(regions),
        finisher_(completions, std::move(sendNote)),
        regions_(out, peer),
        sender_(parts_, *this, out, route_),
        receiver_(parts_, *this, gpus, completions) {}

  void start(const TransferPtr& transfer, Target target) REQUIRES(kEngineLock);
  // Ends the transfer with `why`, once nothing touches the memory any more.
  void cancel(const OperationPtr& operation, const Status& why)
      REQUIRES(kEngineLock) override;
  // Sends frames that had to wait for room. Returns true if any was sent.
  bool flush() REQUIRES(kEngineLock) {
    return sender_.flush();
  }
  bool idle() const REQUIRES(kEngineLock) {
    return parts_.size() == 0;
  }
  std::vector<OperationPtr> pending(uint64_t groupKey) const
      REQUIRES(kEngineLock);

  void onResolved(const wire::Resolved& resolved) REQUIRES(kEngineLock);
  void onRevokeKey(const wire::RevokeKey& revoke) REQUIRES(kEngineLock) {
    regions_.onRevokeKey(revoke);
  }
  // The messages of parts that go in messages.
  FrameReceiver& receiver() REQUIRES(kEngineLock) {
    return receiver_;
  }
  void onTransferred(uint64_t id, const Status& status) REQUIRES(kEngineLock);
  // Goes on with transfers waiting for the registration of a local region;
  // `status` says whether registering succeeded.
  void onRegistered(const Region& region, const Status& status)
      REQUIRES(kEngineLock);

  // Ends all transfers with `why`, because the channel has failed.
  void fail(const Status& why) REQUIRES(kEngineLock);
  // Begins nothing until resume(): another connection will take the place of
  // the present connection.
  void sever() REQUIRES(kEngineLock) {
    route_.severed = true;
  }
  // Makes no further call to the severed connection.
  void detach() REQUIRES(kEngineLock) {
    route_.connection = nullptr;
  }
  // Resets the transfers that the severed connection was moving, to begin anew,
  // and ends the cancelled transfers: the severed connection has been
  // destroyed.
  void quieted() REQUIRES(kEngineLock);
  // Begins waiting transfers by the new connection.
  void resume(Connection& connection) REQUIRES(kEngineLock);

 private:
  using State = ActivePart::State;
  void tryStart(uint64_t id) REQUIRES(kEngineLock);
  void startByRoute(uint64_t id, const RemoteBuffer& memory)
      REQUIRES(kEngineLock);
  bool startByGpu(uint64_t id, const RemoteBuffer& memory)
      REQUIRES(kEngineLock);
  void startFrames(uint64_t id) REQUIRES(kEngineLock);
  void restart(ActivePart& active) REQUIRES(kEngineLock);
  void end(uint64_t id, const Status& status) REQUIRES(kEngineLock) override;
  void stop(const TransferPtr& transfer, const Status& why)
      REQUIRES(kEngineLock);

  TransferRoute route_;
  PeerGpus& gpus_;
  Completions& completions_;
  RegionTable& localRegions_;
  TransferFinisher finisher_;
  ActiveParts parts_;
  RemoteRegions regions_;
  FrameSender sender_;
  FrameReceiver receiver_;
  // Parts waiting for the owner's answer, by the owner's id of the region.
  WaitingParts<uint64_t> resolving_;
  // Parts waiting for the registration of a local region.
  WaitingParts<const Region*> registering_;
};

} // namespace dlslime
