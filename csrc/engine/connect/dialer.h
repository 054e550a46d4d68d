#pragma once

#include <map>
#include <set>
#include <vector>

#include "engine/connect/outgoing_handshake.h"

namespace dlslime {

// Handshakes begun by this process, at most one with each peer. Wire-up thread
// only.
class Dialer {
 public:
  Dialer(
      EngineState& state,
      const Acceptor& acceptor,
      HandshakeResults& results)
      : state_(state), acceptor_(acceptor), results_(results) {}

  // Begins a handshake instead of an earlier one with the peer.
  void begin(const ConnectRequest& request);
  bool dials(const ChannelKey& key) const {
    return handshakes_.contains(key);
  }
  // Returns whether a handshake with the peer has got through to the peer.
  bool hasConnected(const ChannelKey& key) const;
  // Returns how far the handshake with the peer has come; empty: there is none.
  std::string progress(const ChannelKey& key) const;
  // Ends the handshake, if any, without a result.
  void drop(const ChannelKey& key);

  void addTo(std::vector<pollfd>& fds) const;
  // Serves the descriptors in `heard`, found ready by poll().
  void onPoll(const std::set<int>& heard);
  TimePoint nextDeadline() const;
  // Verifies connections, and takes on what is late at `looked`, the time up to
  // which onPoll() has handled all arrivals.
  void expire(TimePoint looked);

 private:
  using Step = bool (OutgoingHandshake::*)();
  template <typename Chosen>
  void advanceThose(const Chosen& chosen, Step step);
  void advance(const ChannelKey& key, Step step);
  void fail(const ChannelKey& key, Status why);

  EngineState& state_;
  const Acceptor& acceptor_;
  HandshakeResults& results_;
  std::map<ChannelKey, OutgoingHandshake> handshakes_;
};

} // namespace dlslime
