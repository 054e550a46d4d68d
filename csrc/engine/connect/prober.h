#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/connect/dialer.h"

namespace dlslime {

// Finds out whether a connection better than a working one would work, without
// touching the working one. Wire-up thread only.
class Prober : private HandshakeResults {
 public:
  Prober(EngineState& state, const Acceptor& acceptor)
      : dialer_(state, acceptor, *this) {}

  // Working connection that a probe has to beat.
  struct Standing {
    std::string route;
    size_t merit = 0;
  };
  void begin(ConnectRequest request, Standing standing);
  struct Better {
    ChannelKey key;
    std::string what; // "rdma by mlx5_0:1"
  };
  // Returns the better connections found since the last call.
  std::vector<Better> takeBetter() {
    return std::exchange(better_, {});
  }
  // The probes' handshakes.
  Dialer& dialer() {
    return dialer_;
  }
  const Dialer& dialer() const {
    return dialer_;
  }

 private:
  void onMade(MadeConnection made, ControlSocket socket) override;
  void onFailed(const ChannelKey& key, Status why, bool gone) override;

  Dialer dialer_;
  std::map<ChannelKey, Standing> standing_;
  std::vector<Better> better_;
};

} // namespace dlslime
