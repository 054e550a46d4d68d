#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/config.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/peer/channel_table.h"
#include "interface/transport.h"

namespace dlslime {

// Connection asked for by this process.
struct ConnectRequest {
  ChannelKey key;
  AddressRecord record; // of the peer
  FallbackPolicy fallback = FallbackPolicy::kWarn;
  std::shared_ptr<gloo::CarrierSource> carrierSource;
  int rank = 0; // of the peer, for texts
  // Number, from 1, of the pair's connection to be replaced; 0: the new
  // connection is the first.
  uint32_t replaces = 0;
  // Number of the last message seen by this end over the replaced connection.
  uint64_t lastSeen = 0;
  // Secret shared by both ends since the first handshake; empty for the first.
  Bytes pairSecret{};
  // Set for a probe, which finds out whether a connection would work, and whose
  // peer installs nothing: the last route worth trying.
  std::optional<std::string> probeUpTo{};

  bool probe() const {
    return probeUpTo.has_value();
  }
  // Returns the secret by which both ends prove themselves.
  const Bytes& secret() const {
    return pairSecret.empty() ? record.token : pairSecret;
  }
};

} // namespace dlslime
