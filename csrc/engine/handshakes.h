#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <vector>

#include "engine/control_socket.h"
#include "engine/engine_state.h"
#include "engine/listener.h"
#include "engine/route.h"
#include "engine/wire_records.h"

namespace dlslime {

// Brings up connections, from both sides. On the wire-up thread only; takes
// the engine's lock to install what it has made.
class Handshakes {
 public:
  explicit Handshakes(EngineState& state);

  struct Request {
    ChannelKey key;
    AddressRecord record; // of the peer
    FallbackPolicy fallback = FallbackPolicy::kWarn;
    std::shared_ptr<void> carrierSource;
    int rank = 0; // of the peer, for texts
  };
  // Starts connecting; the channel appears in the table, or failure() tells.
  void begin(Request request);
  bool busy(const ChannelKey& key) const {
    return attempts_.contains(key);
  }
  // Why the last attempt failed; ok if none has. kUnavailable: another
  // attempt would end the same way.
  Status failure(const ChannelKey& key) const;

  // Where peers find us: for the address record.
  const std::string& socketName() const {
    return local_.names().front();
  }
  std::vector<std::string> addresses() const {
    return network_ ? network_->names() : std::vector<std::string>();
  }
  // Descriptors to poll for reading, and what to do when poll() returns.
  void addTo(std::vector<pollfd>& fds) const;
  void onPoll(const std::vector<pollfd>& fds);
  TimePoint nextDeadline() const;
  void expire();

 private:
  // A peer answers in microseconds unless it is starved of CPU.
  static constexpr milliseconds kHandshakeTime{10000};
  // Of one address of several: packets that a firewall drops tell nobody.
  static constexpr milliseconds kConnectTime{5000};
  // Without accepting: this process is full of guests, or of descriptors.
  static constexpr milliseconds kAcceptPause{100};

  struct Attempt {
    Request request;
    std::vector<RouteOption> options;
    size_t next = 0; // of the options
    Transport* transport = nullptr; // of the one that is being tried
    std::vector<RejectedRoute> rejected; // those before, and why
    Transport::Context context;
    Bytes hello; // what is sent once the socket is connected,
    std::vector<UniqueFd> helloFds; // and beside it
    std::optional<ControlSocket> socket; // none: crossed, the peer comes to us
    bool connecting = false;
    size_t address = 0; // of the record's, the one in use or to be tried
    std::string unreachable; // by those before, and why
    TimePoint deadline;
  };
  struct Guest {
    ControlSocket socket;
    TimePoint deadline;
  };
  static std::string describePeer(const Attempt& attempt);
  bool tryNext(Attempt& attempt);
  void makeHello(Attempt& attempt, Transport& transport);
  void onSocket(const ChannelKey& key);
  void onWelcome(const ChannelKey& key);
  bool settle(Attempt& attempt, Welcome welcome, ControlSocket::Frame& frame);
  void fail(const ChannelKey& key, Status why);
  void tryAnother(Attempt& attempt, const std::string& why);
  void onLate(const ChannelKey& key);
  void connectSelf(const Request& request);
  void install(
      const ChannelKey& key,
      const PeerIdentity& peer,
      std::unique_ptr<Connection> connection,
      ControlSocket socket,
      std::vector<RejectedRoute> rejected);

  // handshake_dial.cpp
  void connect(Attempt& attempt);
  void connectByNetwork(Attempt& attempt);
  void nextAddress(Attempt& attempt, const std::string& problem);
  void onConnected(Attempt& attempt);
  void sendHello(Attempt& attempt);
  void onProblem(const ChannelKey& key, const Status& why);

  // handshake_guests.cpp
  bool accepting() const;
  void acceptGuests(Listener& listener);
  bool onGuest(Guest& guest); // true: finished with it
  Welcome answer(Guest& guest, ControlSocket::Frame frame, Hello hello);
  Welcome connectGuest(
      Guest& guest,
      ControlSocket::Frame frame,
      const Hello& hello,
      Transport& transport);

  EngineState& state_;
  Listener local_ = Listener::onThisHost();
  std::optional<Listener> network_; // none: this host has no network
  std::map<ChannelKey, Attempt> attempts_;
  std::map<ChannelKey, Status> failures_;
  std::vector<Guest> guests_;
  TimePoint acceptAgain_{};
};

} // namespace dlslime
