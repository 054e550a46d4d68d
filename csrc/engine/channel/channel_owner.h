#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/progress/engine_mutex.h"
#include "interface/message.h"

namespace dlslime {

class PeerChannel;
class ReceivingGroup;
class Transfer;

// What a channel needs of the rest of the process, and tells it. Under the
// engine's lock.
class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  // Returns the group with the id `group`; null if the group is unknown or
  // closed, or if the channel's peer has not joined as rank `source`.
  virtual ReceivingGroup* groupOf(
      const PeerChannel& channel,
      uint32_t group,
      uint32_t source) REQUIRES(kEngineLock) = 0;
  // Handles a message of engine/wire/group_messages.h.
  virtual void onGroupMessage(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& header) REQUIRES(kEngineLock) = 0;
  // Posts the note of a transfer whose bytes are all in place.
  virtual void sendNote(const Transfer& transfer) REQUIRES(kEngineLock) = 0;
  virtual void onChannelFailed(PeerChannel& channel, const Status& why)
      REQUIRES(kEngineLock) = 0;
  // Called when a new connection has replaced the severed connection.
  virtual void onChannelResumed(PeerChannel& channel) REQUIRES(kEngineLock) = 0;
};

} // namespace dlslime
