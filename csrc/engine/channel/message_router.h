#pragma once

#include "engine/channel/channel_owner.h"
#include "engine/channel/channel_parts.h"
#include "engine/gpu/peer_gpus.h"
#include "engine/progress/engine_mutex.h"

namespace dlslime {

// Gives each message of a peer to the part that handles the message. Under the
// engine's lock.
class MessageRouter {
 public:
  MessageRouter(
      PeerChannel& channel,
      ChannelOwner& owner,
      ChannelParts& parts,
      PeerGpus& gpus)
      : channel_(channel), owner_(owner), parts_(parts), gpus_(gpus) {}

  // Not ok: the peer breaks the protocol.
  [[nodiscard]] Status route(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock);
  // These two implement ConnectionEvents for GetData and Put.
  Placement placementOf(const MessageHeader& header, ByteSpan begin)
      REQUIRES(kEngineLock);
  void onPlaced(const MessageHeader& header, Fault fault) REQUIRES(kEngineLock);

 private:
  Status toInbound(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock);
  Status toOutbound(const MessageHeader& header) REQUIRES(kEngineLock);
  Status toInitiator(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock);
  Status toTarget(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock);
  Status toGpus(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock);
  template <typename Message>
  ReceivingGroup* groupOf(const Message& message) REQUIRES(kEngineLock) {
    return owner_.groupOf(channel_, message.group, message.source);
  }

  PeerChannel& channel_;
  ChannelOwner& owner_;
  ChannelParts& parts_;
  PeerGpus& gpus_;
};

// Returns the failure of a channel whose peer sends what it must not.
Status invalidMessage(const MessageHeader& header, const PeerIdentity& peer);

} // namespace dlslime
