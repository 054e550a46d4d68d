#pragma once

#include <vector>

#include "transports/rdma/rail_set.h"

namespace dlslime::rdma {

// Messages of a connection over the first rail, through the eager rings of both
// ends.
class EagerMessages {
 public:
  // Largest payload of a message, in bytes.
  static constexpr size_t kMostPayload =
      kMostRecordBytes - sizeof(MessageHeader);

  EagerMessages(RailSet& rails, const RingMemory& memory)
      : rails_(rails), memory_(memory) {}

  bool hasRoom(size_t payload) const {
    return rails_.mayPost() && out_.fits(sizeof(MessageHeader) + payload);
  }
  // Returns false if there is no room now. True even if the device refused the
  // request: the mirror keeps the record, and the replacing connection sends
  // the message again.
  bool send(const MessageHeader& header, ByteSpan payload);
  // Handles the message whose record the peer has written at the position.
  void onRecord(uint32_t position, ConnectionEvents& events);
  // Frees the units before the position, which the peer has consumed.
  void onCredit(uint32_t position);
  // Tells the peer of consumed units, if enough have come together.
  void returnCredit();
  // Posts receives again, once at least so many have been taken.
  void giveBackReceives(Rail& rail, uint32_t least);
  // Returns the messages for which the peer has not returned credit, oldest
  // first.
  std::vector<SentMessage> unconfirmed() const;

 private:
  void postRecord(uint32_t position, size_t bytes);
  std::byte* mirrorAt(uint32_t position) const {
    return memory_.mirror() + position % kRingUnits * kRingUnit;
  }

  RailSet& rails_;
  const RingMemory& memory_;
  RingProducer out_;
  RingConsumer in_;
};

} // namespace dlslime::rdma
