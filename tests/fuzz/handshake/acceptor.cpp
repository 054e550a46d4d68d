// A connecting process that sends anything: before the proof of the secret, and
// afterwards in properly sealed records.
#include "engine/connect/acceptor.h"

#include <sys/socket.h>

#include "descriptors.h"
#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

using End = SessionKey::End;

Bytes secretOf(SecretKind kind) {
  return Bytes(32, kind == SecretKind::kToken ? std::byte{5} : std::byte{6});
}

// Equal in make_seeds.cpp.
const Bytes kTarget(kInstanceBytes, std::byte{1});
const Bytes kSelf(kInstanceBytes, std::byte{2});

Acceptor& acceptor() {
  static auto* const made = [] {
    checkLog();
    PeerIdentity identity = makeIdentity();
    identity.instance = kTarget;
    return new Acceptor(
        {identity, nullptr, "=lo", "set by a test"},
        [](const Greeting& greeting) { return secretOf(greeting.secret); });
  }();
  return *made;
}

// Lets the acceptor work until no socket has news.
void pump() {
  for (;;) {
    std::vector<pollfd> fds;
    acceptor().addTo(fds);
    std::set<int> heard;
    if (poll(fds.data(), fds.size(), 0) <= 0) {
      return;
    }
    for (const auto& entry : fds) {
      if (entry.revents != 0) {
        heard.insert(entry.fd);
      }
    }
    acceptor().onPoll(heard);
  }
}

// The connecting end.
class Stranger {
 public:
  explicit Stranger(bool local)
      : socket_(
            local ? ControlSocket::connectTo(acceptor().socketName())
                  : ControlSocket::startConnecting(
                        acceptor().addresses().front())) {}

  void write(ByteSpan bytes) {
    send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void meet(SecretKind kind) {
    Greeting greeting{
        kTarget, kSelf, RoutePolicy::kAuto, kind, Bytes(kNonceBytes)};
    socket_.sendFrame(encode(greeting));
    pump();
    const auto frame = socket_.receiveFrame();
    require(frame.has_value(), "a greeting is answered");
    const auto challenge = decodeChallenge(*frame);
    key_.emplace(secretOf(kind), greeting, challenge.nonce);
    require(key_->provenBy(challenge.proof), "the acceptor proves itself");
  }
  // Sends a record: sealed after meet(), plain before.
  void sendRecord(uint8_t number, ByteSpan record) {
    socket_.sendFrame(
        key_ ? key_->seal(End::kInitiator, number, record) : copyOf(record));
  }
  void sendDescriptors(size_t count) {
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < count; ++i) {
      fds.emplace_back(fcntl(socket_.fd(), F_DUPFD_CLOEXEC, 0));
    }
    socket_.sendDescriptors(fds);
  }
  void checkWelcome(const Welcome& sent) {
    const auto frame = socket_.receiveFrame();
    require(frame.has_value(), "a welcome peer is told so");
    const auto welcome = key_->open(End::kAcceptor, 0, *frame);
    require(copyOf(welcome) == encode(sent), "and what was said comes");
  }

 private:
  ControlSocket socket_;
  std::optional<SessionKey> key_;
};

void step(Input& input, Stranger& stranger) {
  switch (input.below(8)) {
    case 0:
      stranger.write(input.blob());
      break;
    case 1:
      stranger.sendDescriptors(1 + input.below(kMostDescriptors));
      break;
    case 2: // a confirmation may come early
      stranger.sendRecord(1, input.blob());
      break;
    default:
      stranger.sendRecord(0, input.blob());
  }
  if (input.oneIn(2)) {
    pump();
  }
}

// Checks that the records of a proven peer agree, and takes a confirmation.
void checkProven(Stranger& stranger, Incoming& incoming) {
  const auto& hello = incoming.hello;
  require(hello.self.instance == kSelf, "the peer is the instance it named");
  require(incoming.greeting.self == kSelf, "in both records");
  require(incoming.fds.size() == hello.descriptors, "all it announced came");
  require(incoming.fds.empty() || incoming.socket.local(), "on this host");
  requirePlain(incoming.socket.peerOrigin());
  takes([&] {
    const Welcome welcome{Verdict::kAccepted, "welcome", {}};
    incoming.answer(encode(welcome));
    stranger.checkWelcome(welcome);
  });
  takes([&] {
    const auto frame = incoming.socket.receiveFrame();
    if (frame) {
      const auto confirm =
          decodeConfirm(incoming.key.open(End::kInitiator, 1, *frame));
      requirePlain(confirm.problem);
    }
  });
}

void run(Input input) {
  acceptor();
  const DescriptorsKept kept;
  const auto how = input.number<uint8_t>();
  takes([&] {
    Stranger stranger(how % 4 != 0);
    takes([&] {
      if (how % 8 >= 2) {
        stranger.meet(how % 16 >= 8 ? SecretKind::kPair : SecretKind::kToken);
      }
      while (input.more()) {
        step(input, stranger);
      }
    });
    pump();
    auto proven = acceptor().take();
    require(proven.size() <= 1, "one connection is one peer");
    for (auto& incoming : proven) {
      checkProven(stranger, incoming);
    }
  });
  pump();
  acceptor().take();
  acceptor().expire(Clock::now() + HandshakeLimits::kProofTime);
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
