#pragma once

#include <cstdint>

#include "rdma/nic.h"

namespace dlslime::rdma {

// How queue pairs are set up. Names and values are those of the InfiniBand
// specification; see docs/configuration.md.
struct RdmaOptions {
  NicOptions nics;
  uint8_t serviceLevel = 0; // DLSLIME_IB_SL
  uint8_t trafficClass = 0; // DLSLIME_IB_TC: DSCP and ECN bits of RoCE v2
  uint16_t pkeyIndex = 0; // DLSLIME_IB_PKEY
  // DLSLIME_IB_TIMEOUT: an unanswered packet is sent again after
  // 4.096 us * 2^timeout, here 0.54 s, ...
  uint8_t timeout = 17;
  // DLSLIME_IB_RETRY_CNT: ... this many times.
  uint8_t retryCount = 7;
};

} // namespace dlslime::rdma
