#include "transports/rdma/end_address.h"

#include <string>

#include "base/bytes.h"
#include "transports/rdma/rail/eager_ring.h"

namespace dlslime::rdma {

Bytes EndAddress::encode() const {
  ByteWriter writer;
  writer.number(ring);
  writer.number(kRingUnits);
  writer.number(static_cast<uint8_t>(rails.size()));
  for (const auto& rail : rails) {
    writer.number(rail.number);
    writer.number(rail.nicNumber);
    writer.number(rail.ringKey);
    rail.pair.write(writer);
  }
  return writer.take();
}

EndAddress EndAddress::decode(ByteSpan bytes) {
  ByteReader reader(bytes);
  EndAddress address;
  address.ring = reader.number<uint64_t>();
  const auto units = reader.number<uint32_t>();
  const auto count = reader.number<uint8_t>();
  bool ordered = true;
  for (size_t i = 0; i < count && i < kMostRails && reader.ok(); ++i) {
    RailAddress rail;
    rail.number = reader.number<uint8_t>();
    rail.nicNumber = reader.number<uint8_t>();
    rail.ringKey = reader.number<uint32_t>();
    rail.pair = QueuePairAddress::read(reader);
    ordered &= rail.number < kMostRails &&
        rail.nicNumber < RemoteBuffer::kMostKeys &&
        (address.rails.empty() || address.rails.back().number < rail.number);
    address.rails.push_back(rail);
  }
  if (!reader.atEnd() || units != kRingUnits || !ordered || count == 0) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer's RDMA address is malformed (" +
            std::to_string(bytes.size()) + " bytes, " + std::to_string(count) +
            " queue pairs, a ring of " + std::to_string(units) + " units)");
  }
  return address;
}

} // namespace dlslime::rdma
