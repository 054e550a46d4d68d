#include "rdma/end_address.h"

#include <string>

#include "core/bytes.h"
#include "rdma/eager_ring.h"

namespace dlslime::rdma {

Bytes EndAddress::encode() const {
  ByteWriter writer;
  pair.write(writer);
  writer.number(ring);
  writer.number(ringKey);
  writer.number(kRingUnits);
  return writer.take();
}

EndAddress EndAddress::decode(ByteSpan bytes) {
  ByteReader reader(bytes);
  EndAddress address;
  address.pair = QueuePairAddress::read(reader);
  address.ring = reader.number<uint64_t>();
  address.ringKey = reader.number<uint32_t>();
  const auto units = reader.number<uint32_t>();
  if (!reader.atEnd() || units != kRingUnits) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer's RDMA address is malformed (" +
            std::to_string(bytes.size()) + " bytes, a ring of " +
            std::to_string(units) + " units)");
  }
  return address;
}

} // namespace dlslime::rdma
