#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/bootstrap/side_sockets.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/connect/acceptor.h"
#include "engine/connect/route.h"
#include "engine/state/engine_state.h"

namespace dlslime {

class EngineLock;

// Brings up connections, as the initiator or as the acceptor. Wire-up thread
// only; takes the engine's lock to look up and install connections.
class Handshakes {
 public:
  explicit Handshakes(EngineState& state);
  ~Handshakes();

  struct Request {
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
    // Working connection that a probe has to beat.
    struct Standing {
      std::string route;
      size_t merit = 0;
    };
    // Set for a probe, which only finds out whether a connection better than
    // `than` would work.
    std::optional<Standing> than;
    // Secret shared by both ends since the first handshake; set with `replaces`
    // or `than`.
    Bytes pairSecret{};
    // Returns the secret by which both ends prove themselves.
    const Bytes& secret() const {
      return pairSecret.empty() ? record.token : pairSecret;
    }
  };
  // Starts connecting: a channel appears in the table, or failure() tells why
  // not. With `than`, starts a probe, whose success takeBetter() reports; any
  // real handshake of the pair ends the probe.
  void begin(Request request);
  struct Better {
    ChannelKey key;
    std::string what; // "rdma by mlx5_0:1"
  };
  std::vector<Better> takeBetter() {
    return std::exchange(better_, {});
  }
  // Returns whether a handshake other than a probe is under way.
  bool busy(const ChannelKey& key) const;
  // Returns why the last attempt failed; ok if none has. kUnavailable: a new
  // attempt would fail alike. kTransportFailed, when replacing a connection:
  // the peer has given up the connection.
  Status failure(const ChannelKey& key) const;
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
  void addTo(std::vector<pollfd>& fds) const;
  void onPoll(const std::vector<pollfd>& fds);
  TimePoint nextDeadline() const;
  // Ends late handshakes. `looked` is the time up to which onPoll() has handled
  // all arrivals, so bytes that came while the thread was busy elsewhere count
  // as in time.
  void expire(TimePoint looked);

 private:
  // Time for an answer: a peer answers in microseconds unless starved of CPU.
  static constexpr milliseconds kHandshakeTime{10000};
  // Time for the peer's own connection after kCrossed: a crossing peer has got
  // through already, while a peer that has not yet noticed the loss of the
  // previous connection never comes.
  static constexpr milliseconds kCrossedTime{1000};
  // Time for each of several addresses: packets dropped by a firewall cause no
  // error.
  static constexpr milliseconds kConnectTime{5000};
  // Time until a new connection is known to work: RDMA retries for 4.3 s by
  // default.
  static constexpr milliseconds kVerifyTime{6000};
  static constexpr milliseconds kVerifyPause{1};

  struct Attempt {
    Request request;
    std::vector<RouteOption> options;
    size_t next = 0; // index of the next option to try
    Transport* transport = nullptr; // being tried
    std::vector<RejectedRoute> rejected; // earlier routes, and why not
    Transport::Context context;
    Hello hello; // to be sent once the acceptor has proved to be the peer
    std::vector<UniqueFd> helloFds; // to be sent behind the hello
    std::optional<ControlSocket> socket; // empty: crossed, the peer connects
    bool connecting = false;
    Greeting greeting; // the last greeting sent
    std::optional<SessionKey> key; // set by the acceptor's proof
    std::optional<Welcome> welcome; // set while descriptors are outstanding
    std::unique_ptr<Connection> connection; // made, and being verified
    uint64_t peerLast = 0; // lastSeen of the Welcome
    uint64_t peerUnexpected = 0; // unexpectedLimit of the Welcome, in bytes
    size_t address = 0; // index of the peer's address in use, or of the next
    std::string unreachable; // earlier addresses, and why
    bool refused = true; // all earlier addresses are without a listener
    bool gone = false; // all addresses are without a listener
    bool givenUp = false; // a replacement was refused at an earlier address
    TimePoint deadline;
  };
  // Usable connection, with all data needed to install the connection.
  struct Made {
    ChannelKey key;
    AddressRecord peer; // without a token if the peer was the initiator
    Bytes pairSecret;
    uint64_t unexpectedLimit = 0; // of the peer, in bytes
    std::unique_ptr<Connection> connection;
    std::vector<RejectedRoute> rejected;
    uint32_t replaces = 0;
    uint64_t peerLast = 0;
    bool probe = false;
    bool began = false; // by this end
  };
  // Handshake that was answered with an accepting Welcome, and awaits the
  // Confirm.
  struct IncomingHandshake {
    Incoming incoming;
    Made made;
    TimePoint deadline;
  };
  struct Failure {
    Status why;
    bool gone = false;
  };
  static std::string describePeer(const Attempt& attempt);
  Bytes secretOf(const Greeting& greeting);
  void start(const ChannelKey& key, Request request);
  bool tryNext(Attempt& attempt);
  void makeHello(Attempt& attempt, Transport& transport);
  void makeSideSocket(Attempt& attempt) const;
  bool isVerified(Attempt& attempt, Confirm& confirm);
  void onSocket(const ChannelKey& key);
  void onAnswer(const ChannelKey& key);
  void onChallenge(Attempt& attempt, ByteSpan frame);
  [[noreturn]] static void refusedBy(
      const Attempt& attempt,
      const std::string& text);
  void settle(Attempt& attempt, Welcome welcome, std::vector<UniqueFd> fds);
  static void sendConfirm(Attempt& attempt, const Confirm& confirm);
  bool verify(Attempt& attempt);
  void judge(const Attempt& attempt);
  bool ownAttemptGoesOn(const ChannelKey& key) const;
  static void tellProblem(Attempt& attempt, const std::string& what);
  void drop(const ChannelKey& key);
  void fail(const ChannelKey& key, Status why);
  void noteFailure(const ChannelKey& key, Failure failure);
  void tryAnother(Attempt& attempt, const std::string& why);
  void onVerifying(const ChannelKey& key);
  void onLate(const ChannelKey& key);
  void connectSelf(const Request& request);
  void install(Made made, ControlSocket socket);
  std::shared_ptr<PeerChannel> whoAwaits(
      const Made& made,
      Unprepared& unprepared) REQUIRES(theEngineLock);
  void installAgain(EngineLock& lock, Made& made, ControlSocket socket)
      REQUIRES(theEngineLock) NO_THREAD_SAFETY_ANALYSIS;

  // The following functions are in handshake_dial.cpp.
  void connect(Attempt& attempt);
  void requireAddress(const Attempt& attempt) const;
  void connectByNetwork(Attempt& attempt);
  static void nextAddress(Attempt& attempt, const Status& problem);
  void onConnected(Attempt& attempt);
  void sendGreeting(Attempt& attempt);
  void onProblem(const ChannelKey& key, const Status& why);

  // The following functions are in handshake_answer.cpp.
  void onIncoming(Incoming incoming);
  void requireRoomToBegin(const Incoming& incoming) const;
  void requireRoomToStay(const Incoming& incoming) const;
  bool onConfirm(IncomingHandshake& handshake); // true: finished
  std::optional<Made> answer(Incoming& incoming, Welcome& refusal);
  void bringSideSocket(Incoming& incoming);
  std::optional<Welcome> answerReplacing(
      const ChannelKey& key,
      const Hello& hello);
  void dropIncoming(const std::function<bool(const IncomingHandshake&)>& which);
  void dropOthers(const ChannelKey& key);
  uint64_t lastSeen(const ChannelKey& key);
  std::shared_ptr<Group> groupOf(const ChannelKey& key, const Hello& hello);
  Transport::Context contextOf(
      const Incoming& incoming,
      const Transport& transport);
  std::optional<Made>
  connectIncoming(Incoming& incoming, Transport& transport, Welcome& refusal);
  void welcome(Incoming& incoming, const ChannelKey& key, Offer reply);

  EngineState& state_;
  const std::shared_ptr<SideSockets> sideSockets_ =
      std::make_shared<SideSockets>();
  Acceptor acceptor_;
  std::map<ChannelKey, Attempt> attempts_;
  std::map<ChannelKey, Failure> failures_;
  std::vector<IncomingHandshake> incoming_;
  std::vector<Better> better_;
  bool news_ = false;
  TimePoint drainUntil_{}; // limit of all draining in the current onPoll()
  const HandshakeLimits limits_ = HandshakeLimits::ofProcess();
};

} // namespace dlslime
