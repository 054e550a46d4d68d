#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <optional>
#include <vector>

#include "base/random.h"
#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/session_key.h"
#include "fakes/world.h"

namespace dlslime::testing {

// The initiator of a handshake, driven by hand: for tests with false records.
class Initiator {
 public:
  using End = SessionKey::End;

  Initiator(ControlSocket connected, const AddressRecord& target)
      : socket(std::move(connected)), secret(target.token) {
    greeting.target = target.identity.instance;
    greeting.self = randomBytes(kInstanceBytes);
    greeting.nonce = randomBytes(kNonceBytes);
    hello.self = makeIdentity();
    hello.self.instance = greeting.self;
    hello.socketName = "dlslime-of-the-initiator";
    hello.nonce = "0123456789abcdef";
    hello.group = target.group;
    hello.route = "shm";
  }

  std::optional<Bytes> nextFrame() {
    for (int i = 0; i < 100; ++i) {
      pollfd entry{socket.fd(), POLLIN, 0};
      if (::poll(&entry, 1, 5000) != 1) {
        return std::nullopt;
      }
      if (auto frame = socket.receiveFrame()) {
        return frame;
      }
    }
    return std::nullopt;
  }
  // Sends the greeting and returns the challenge, if any.
  std::optional<Challenge> greet() {
    socket.sendFrame(encode(greeting));
    return nextChallenge();
  }
  std::optional<Challenge> nextChallenge() {
    const auto frame = nextFrame();
    return frame ? std::optional(decodeChallenge(*frame)) : std::nullopt;
  }
  // Sends the greeting, and makes the key from the challenge.
  ::testing::AssertionResult meet() {
    socket.sendFrame(encode(greeting));
    return takeChallenge();
  }
  // Makes the key from the challenge.
  ::testing::AssertionResult takeChallenge() {
    const auto challenge = nextChallenge();
    if (!challenge || challenge->verdict != Verdict::kAccepted) {
      return ::testing::AssertionFailure()
          << "no challenge" << (challenge ? ": " + challenge->text : "");
    }
    key.emplace(secret, greeting, challenge->nonce);
    if (!key->provenBy(challenge->proof)) {
      return ::testing::AssertionFailure() << "it proves nothing";
    }
    return ::testing::AssertionSuccess();
  }
  void sendHello(const std::vector<UniqueFd>& fds = {}) {
    hello.descriptors = static_cast<uint8_t>(fds.size());
    socket.sendFrame(key->seal(End::kInitiator, 0, encode(hello)));
    if (!fds.empty()) {
      socket.sendDescriptors(fds);
    }
  }
  std::optional<Welcome> welcome() {
    const auto frame = nextFrame();
    if (!frame) {
      return std::nullopt;
    }
    auto answer = decodeWelcome(key->open(End::kAcceptor, 0, *frame));
    if (answer.descriptors > 0) {
      pollfd entry{socket.fd(), POLLIN, 0};
      ::poll(&entry, 1, 5000);
      received = socket.receiveDescriptors(answer.descriptors)
                     .value_or(std::vector<UniqueFd>());
    }
    return answer;
  }
  // Runs the handshake up to the answer to the hello.
  std::optional<Welcome> ask(const std::vector<UniqueFd>& fds = {}) {
    if (!meet()) {
      return std::nullopt;
    }
    sendHello(fds);
    return welcome();
  }
  void confirm(const Confirm& confirm) {
    socket.sendFrame(key->seal(End::kInitiator, 1, encode(confirm)));
  }

  ControlSocket socket;
  Bytes secret;
  Greeting greeting;
  Hello hello;
  std::optional<SessionKey> key;
  std::vector<UniqueFd> received; // with the welcome
};

// Plays the acceptor up to the hello, which may be anything: proves knowledge
// of the secret. Returns the handshake's key, or nothing if a record does not
// come.
inline std::optional<SessionKey> acceptHelloBy(
    ControlSocket& socket,
    ByteSpan secret) {
  std::optional<Bytes> frame;
  const auto came = [&] { return (frame = socket.receiveFrame()).has_value(); };
  if (!eventually(came)) {
    return std::nullopt;
  }
  const auto nonce = randomBytes(kNonceBytes);
  const SessionKey key(secret, decodeGreeting(*frame), nonce);
  socket.sendFrame(
      encode(Challenge{Verdict::kAccepted, "", nonce, key.acceptorProof()}));
  if (!eventually(came)) {
    return std::nullopt;
  }
  key.open(SessionKey::End::kInitiator, 0, *frame);
  return key;
}

// Plays the acceptor, and answers the hello with `welcome`.
inline ::testing::AssertionResult
answerBy(ControlSocket& socket, ByteSpan secret, const Welcome& welcome) {
  const auto key = acceptHelloBy(socket, secret);
  if (!key) {
    return ::testing::AssertionFailure() << "no greeting, or no hello";
  }
  socket.sendFrame(key->seal(SessionKey::End::kAcceptor, 0, encode(welcome)));
  return ::testing::AssertionSuccess();
}

} // namespace dlslime::testing
