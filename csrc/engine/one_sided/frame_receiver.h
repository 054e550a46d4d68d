#pragma once

#include <limits>
#include <span>
#include <vector>

#include "engine/gpu/peer_gpus.h"
#include "engine/one_sided/active_part.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "engine/wire/one_sided_messages.h"
#include "interface/bulk_payload.h"

namespace dlslime {

// Takes the answers to parts that go in messages: GetData with the bytes of a
// read, and PutAck, which ends either. Under the engine's lock.
class FrameReceiver {
 public:
  FrameReceiver(
      ActiveParts& parts,
      PartOwner& owner,
      PeerGpus& gpus,
      Completions& completions)
      : parts_(parts), owner_(owner), gpus_(gpus), completions_(completions) {}

  void onGetData(const wire::GetData& data, ByteSpan payload)
      REQUIRES(kEngineLock);
  // placementOf() and onPlacedData() implement ConnectionEvents for a GetData;
  // `size` is the size of the payload.
  Placement placementOf(const wire::GetData& data, size_t size) const
      REQUIRES(kEngineLock);
  void onPlacedData(const wire::GetData& data, size_t size, Fault fault)
      REQUIRES(kEngineLock);
  void onPutAck(const wire::PutAck& ack) REQUIRES(kEngineLock);

 private:
  using Places = std::vector<std::span<std::byte>>;
  static bool placesOf(
      const ActivePart& active,
      size_t size,
      ActivePart::Position& at,
      Places& places,
      size_t most = std::numeric_limits<size_t>::max());
  // Returns the read continued by `size` bytes of a GetData, and fills
  // `places`. Returns null if the read has been given up, or ends because the
  // bytes do not continue the read.
  ActivePart* continued(const wire::GetData& data, size_t size, Places& places)
      REQUIRES(kEngineLock);
  void arrived(uint64_t id, const ActivePart& active, Fault fault)
      REQUIRES(kEngineLock);

  ActiveParts& parts_;
  PartOwner& owner_;
  PeerGpus& gpus_;
  Completions& completions_;
};

} // namespace dlslime
