#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "engine/bootstrap/side_sockets.h"
#include "engine/connect/dialer.h"

namespace dlslime {

// Acceptor's side of handshakes, from the hello of a proven peer to the
// Confirm. Wire-up thread only.
class IncomingHandshakes {
 public:
  // `dialers`: hold this process's own handshakes, which end when the peer's
  // succeed; the first of them may win against the peer's.
  IncomingHandshakes(
      EngineState& state,
      Acceptor& acceptor,
      std::vector<Dialer*> dialers,
      HandshakeResults& results);
  ~IncomingHandshakes();

  // Answers the peer's hello, or keeps the hello until the connection to be
  // replaced has been read to the end.
  void begin(Incoming incoming);
  // Returns whether a handshake with the peer is under way, probes aside.
  bool busy(const ChannelKey& key) const;

  void addTo(std::vector<pollfd>& fds) const;
  // Serves the descriptors in `heard`, found ready by poll().
  void onPoll(const std::set<int>& heard);
  TimePoint nextDeadline() const;
  // Looks again at kept hellos, and ends handshakes late at `looked`.
  void expire(TimePoint looked);

 private:
  // Answered by an accepting Welcome; awaits the Confirm.
  struct Answered {
    Incoming incoming;
    MadeConnection made;
    TimePoint deadline;
  };
  // Not answered yet, because the connection to be replaced has messages left.
  struct Kept {
    Incoming incoming;
    TimePoint until;
  };
  struct NotReadToTheEnd {};
  using Answer = std::variant<MadeConnection, Welcome, NotReadToTheEnd>;

  void requireRoomToBegin(const Incoming& incoming) const;
  void requireRoomToStay(const Incoming& incoming) const;
  void bringSideSocket(Incoming& incoming);
  void onHello(Incoming incoming, TimePoint keepUntil);
  Answer answer(Incoming& incoming);
  bool ownGoesOn(const ChannelKey& key) const;
  Answer connect(Incoming& incoming, Transport& transport);
  Transport::Context contextOf(
      const Incoming& incoming,
      const Transport& transport,
      const Group* group);
  void dropOthers(const ChannelKey& key);
  bool onConfirm(Answered& handshake); // true: finished
  void acceptConfirm(Answered& handshake, ByteSpan frame);
  void drop(const std::function<bool(const Answered&)>& which);

  EngineState& state_;
  Acceptor& acceptor_;
  const std::vector<Dialer*> dialers_;
  HandshakeResults& results_;
  const std::shared_ptr<SideSockets> sideSockets_ =
      std::make_shared<SideSockets>();
  std::vector<Answered> answered_;
  std::vector<Kept> kept_;
  const HandshakeLimits limits_ = HandshakeLimits::ofProcess();
};

} // namespace dlslime
