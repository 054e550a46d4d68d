#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/connect/incoming_handshakes.h"
#include "engine/connect/prober.h"

namespace dlslime {

// All handshakes of this process, in both directions, and what came of them.
// Wire-up thread only; takes the engine's lock to look up and install
// connections.
class Handshakes : private HandshakeResults {
 public:
  explicit Handshakes(EngineState& state);

  // Starts connecting: a channel appears in the table, or failure() tells why
  // not. Ends a probe of the pair.
  void begin(const ConnectRequest& request);
  // Starts a probe, whose success takeBetter() reports; does nothing while a
  // handshake of this process with the peer goes on.
  void probe(ConnectRequest request, Prober::Standing standing);
  std::vector<Prober::Better> takeBetter() {
    return prober_.takeBetter();
  }
  // Returns whether a handshake other than a probe is under way.
  bool busy(const ChannelKey& key) const;
  // Returns how far the attempt of this process has come; empty: there is none.
  std::string progress(const ChannelKey& key) const {
    return dialer_.progress(key);
  }
  // Returns why the last attempt failed; ok if none has. kUnavailable: a new
  // attempt would fail alike. kTransportFailed, when replacing a connection:
  // the peer has given up the connection.
  Status failure(const ChannelKey& key) const;
  // Returns the same for `group` of the peer: a failure for want of another
  // group, which the attempt was for, is none.
  Status failureFor(const ChannelKey& key, uint32_t group) const;
  // Returns whether the last attempt found every address of the peer without a
  // listener: the process has ended.
  bool gone(const ChannelKey& key) const;
  // Returns true once after a connection has been made.
  bool takeNews() {
    return std::exchange(news_, false);
  }

  // Names of this process's unix socket and TCP addresses, for address records.
  const std::string& socketName() const {
    return acceptor_.socketName();
  }
  std::vector<std::string> addresses() const {
    return acceptor_.addresses();
  }
  void addTo(std::vector<pollfd>& fds);
  void onPoll(const std::vector<pollfd>& fds);
  TimePoint nextDeadline() const;
  // Ends late handshakes. `looked` is the time up to which onPoll() has handled
  // all arrivals, so bytes that came while the thread was busy elsewhere count
  // as in time.
  void expire(TimePoint looked);

 private:
  Bytes secretOf(const Greeting& greeting);
  void onMade(MadeConnection made, ControlSocket socket) override;
  void onFailed(const ChannelKey& key, Status why, bool gone) override;

  // Last attempt to connect.
  struct Attempt {
    uint32_t group = 0; // of the peer, for which a connection is needed
    Status why{}; // ok: it has not failed
    bool gone = false;
  };
  Attempt& attemptWith(const ChannelKey& key);

  EngineState& state_;
  Acceptor acceptor_;
  Dialer dialer_;
  Prober prober_;
  IncomingHandshakes incoming_;
  std::map<ChannelKey, Attempt> attempts_;
  bool news_ = false;
};

} // namespace dlslime
