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

// Brings up connections, from both sides. On the wire-up thread only; takes
// the engine's lock to install what it has made.
class Handshakes {
 public:
  explicit Handshakes(EngineState& state);
  ~Handshakes();

  struct Request {
    ChannelKey key;
    AddressRecord record; // of the peer
    FallbackPolicy fallback = FallbackPolicy::kWarn;
    std::shared_ptr<void> carrierSource;
    int rank = 0; // of the peer, for texts
    // Which connection of the pair the new one replaces, counted from 1, and
    // up to which message we have seen what came by it; 0: it is the first.
    uint32_t replaces = 0;
    uint64_t lastSeen = 0;
    // Where nothing is to come of it, since it is only to be known whether a
    // connection would be better than this one.
    struct Standing {
      std::string route;
      size_t merit = 0;
    };
    std::optional<Standing> than;
    // With `replaces` or `than`: what the two share since they first connected.
    Bytes pairSecret{};
    // What proves us to the peer, and the peer to us.
    const Bytes& secret() const {
      return pairSecret.empty() ? record.token : pairSecret;
    }
  };
  // Starts connecting; the channel appears in the table, or failure() tells.
  // Or tries whether something better than what there is would work, which
  // takeBetter() tells; anything else about this pair ends that.
  void begin(Request request);
  struct Better {
    ChannelKey key;
    std::string what; // "rdma by mlx5_0:1"
  };
  std::vector<Better> takeBetter() {
    return std::exchange(better_, {});
  }
  // Something is under way that will come to a connection, or fail.
  bool busy(const ChannelKey& key) const;
  // Why the last attempt failed; ok if none has. kUnavailable: another
  // attempt would end the same way. kTransportFailed, of one that was to
  // replace a connection: the peer has given it up.
  Status failure(const ChannelKey& key) const;
  // Nobody listens any more wherever its process did: it has ended.
  bool gone(const ChannelKey& key) const;
  // True once after a connection has been made.
  bool takeNews() {
    return std::exchange(news_, false);
  }

  // Where peers find us: for the address record.
  const std::string& socketName() const {
    return acceptor_.socketName();
  }
  std::vector<std::string> addresses() const {
    return acceptor_.addresses();
  }
  // Descriptors to poll for reading, and what to do when poll() returns.
  void addTo(std::vector<pollfd>& fds) const;
  void onPoll(const std::vector<pollfd>& fds);
  TimePoint nextDeadline() const;
  // Ends what is late. `looked`: up to when onPoll() has been told of all; what
  // came while its thread had other work to do has come in time.
  void expire(TimePoint looked);

 private:
  // A peer answers in microseconds unless it is starved of CPU.
  static constexpr milliseconds kHandshakeTime{10000};
  // Whoever connects to us at the same time has got through already; one that
  // has not noticed yet that the connection before is lost never comes.
  static constexpr milliseconds kCrossedTime{1000};
  // Of one address of several: packets that a firewall drops tell nobody.
  static constexpr milliseconds kConnectTime{5000};
  // Until a new connection is known to work: RDMA tries for 4.3 s by default.
  static constexpr milliseconds kVerifyTime{6000};
  static constexpr milliseconds kVerifyPause{1};

  struct Attempt {
    Request request;
    std::vector<RouteOption> options;
    size_t next = 0; // of the options
    Transport* transport = nullptr; // of the one that is being tried
    std::vector<RejectedRoute> rejected; // those before, and why
    Transport::Context context;
    Hello hello; // what is sent once the acceptor has proved itself,
    std::vector<UniqueFd> helloFds; // and behind it
    std::optional<ControlSocket> socket; // none: crossed, the peer comes to us
    bool connecting = false;
    Greeting greeting; // that was sent on it
    std::optional<SessionKey> key; // the acceptor has proved itself
    std::optional<Welcome> welcome; // it has come, but not its descriptors
    std::unique_ptr<Connection> connection; // made, and being verified
    uint64_t peerLast = 0; // of the Welcome,
    uint64_t peerUnexpected = 0; // the same: its limit, in bytes
    size_t address = 0; // of the record's, the one in use or to be tried
    std::string unreachable; // by those before, and why
    bool refused = true; // by all of those: nobody listens there
    bool gone = false; // nor anywhere else
    bool givenUp = false; // one knows us, but not what is to be replaced
    TimePoint deadline;
  };
  // A connection that can be used: what it takes to install it.
  struct Made {
    ChannelKey key;
    AddressRecord peer; // without its token, if the peer has begun
    Bytes pairSecret;
    uint64_t unexpectedLimit = 0; // of the peer, in bytes
    std::unique_ptr<Connection> connection;
    std::vector<RejectedRoute> rejected;
    uint32_t replaces = 0;
    uint64_t peerLast = 0;
    bool probe = false;
    bool began = false; // this end has
  };
  // Answered: until it confirms.
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
      Unprepared& unprepared);
  void installAgain(EngineLock& lock, Made& made, ControlSocket socket);

  // handshake_dial.cpp
  void connect(Attempt& attempt);
  void requireAddress(const Attempt& attempt) const;
  void connectByNetwork(Attempt& attempt);
  static void nextAddress(Attempt& attempt, const Status& problem);
  void onConnected(Attempt& attempt);
  void sendGreeting(Attempt& attempt);
  void onProblem(const ChannelKey& key, const Status& why);

  // handshake_answer.cpp
  void onIncoming(Incoming incoming);
  bool roomFor(const Incoming& incoming) const;
  void requireRoomToStay(const Incoming& incoming) const;
  bool onConfirm(IncomingHandshake& handshake); // true: finished with it
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
  TimePoint drainUntil_{}; // of all that onPoll() looks at
  const HandshakeLimits limits_ = HandshakeLimits::ofProcess();
};

} // namespace dlslime
