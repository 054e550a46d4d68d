#pragma once

#include <optional>

#include "engine/channel/message_router.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/sequencer.h"

namespace dlslime {

// What a connection tells a channel: puts the peer's messages into their order
// and hands them on, with limits on what a peer can make this process keep.
// Under the engine's lock.
class IncomingMessages final : public ConnectionEvents {
 public:
  explicit IncomingMessages(PeerChannel& channel) : channel_(channel) {}

  // Sets the parts, which are made with the first connection.
  void connect(ChannelOwner& owner, ChannelParts& parts, PeerGpus& gpus)
      REQUIRES(kEngineLock) {
    parts_ = &parts;
    router_.emplace(channel_, owner, parts, gpus);
  }
  Sequencer& sequencer() REQUIRES(kEngineLock) {
    return sequencer_;
  }
  const Sequencer& sequencer() const REQUIRES(kEngineLock) {
    return sequencer_;
  }
  // Handles some of the messages kept until their turn: a peer may have sent
  // many thousands. True: more may be left.
  bool handleKept() REQUIRES(kEngineLock);

  void onMessage(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock) override;
  Placement placementOf(const MessageHeader& header, ByteSpan begin)
      REQUIRES(kEngineLock) override;
  void onPlaced(const MessageHeader& header, Fault fault)
      REQUIRES(kEngineLock) override;
  void onPulled(uint64_t pullId, const Status& status)
      REQUIRES(kEngineLock) override {
    parts_->in.rendezvous().onPulled(pullId, status);
  }
  void onPartlyPulled(uint64_t pullId, size_t arrived)
      REQUIRES(kEngineLock) override {
    parts_->in.rendezvous().onPartlyPulled(pullId, arrived);
  }
  void onPushed(uint64_t pushId, const Status& status)
      REQUIRES(kEngineLock) override {
    parts_->out.onPushed(pushId, status);
  }
  void onLanded(uint64_t offerId, uint16_t sequenceBits, size_t length)
      REQUIRES(kEngineLock) override;
  void onParted() REQUIRES(kEngineLock) override;
  void onTransferred(uint64_t id, const Status& status)
      REQUIRES(kEngineLock) override {
    parts_->initiator.onTransferred(id, status);
  }

 private:
  void inOrder(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock);
  void route(const MessageHeader& header, ByteSpan payload)
      REQUIRES(kEngineLock);
  void limitAnswers() REQUIRES(kEngineLock);
  void refuseGap() REQUIRES(kEngineLock);

  PeerChannel& channel_;
  ChannelParts* parts_ = nullptr;
  std::optional<MessageRouter> router_;
  Sequencer sequencer_;
};

} // namespace dlslime
