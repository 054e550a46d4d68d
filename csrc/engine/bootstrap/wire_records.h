#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/config.h"
#include "interface/transport.h"

namespace dlslime {

// Raised when anything in docs/protocol.md changes its meaning; two processes
// of different versions refuse each other by name.
constexpr uint16_t kProtocolVersion = 15;

// What every record begins with, and what one may not lack at its end.
constexpr size_t kInstanceBytes = 16;
void writePreamble(ByteWriter& writer);
void readPreamble(ByteReader& reader, const char* what); // throws Error
void requireWhole(const ByteReader& reader, bool valid, const char* what);

// What a rank publishes in its group's store: how to reach its process, and
// how to prove that one has read this.
struct AddressRecord {
  PeerIdentity identity;
  Bytes token; // 32 random bytes: only holders of the store know them
  std::string socketName; // abstract unix socket of the process's listener
  // The same for other hosts, by TCP; a reader refuses more.
  static constexpr size_t kMostAddresses = 16;
  std::vector<std::string> addresses;
  uint32_t group = 0; // the process's id of the group
  uint64_t epoch = 0; // see Group::epoch()
  // When it joined, by the monotonic clock of its host's boot, in ns.
  int64_t joined = 0;
};
Bytes encode(const AddressRecord& record);
// Throws Error: truncated, oversized, or another protocol version.
AddressRecord decodeAddress(ByteSpan bytes);

// The records of the handshake on a control socket, in their order: Greeting,
// Challenge, Hello, Welcome, Confirm. The last three are sealed (SessionKey).

constexpr size_t kNonceBytes = 32;
constexpr uint8_t kMostDescriptors = 4;

// What both ends of a handshake know, and nobody else.
enum class SecretKind : uint8_t {
  kToken = 1, // of the acceptor's address record
  kPair, // of the connection that is to be replaced, or compared
};
struct Greeting {
  Bytes target; // instance that the initiator means to talk to
  Bytes self; // instance of the initiator
  RoutePolicy policy = RoutePolicy::kAuto;
  SecretKind secret = SecretKind::kToken;
  Bytes nonce; // kNonceBytes random bytes
};
Bytes encode(const Greeting& greeting);
Greeting decodeGreeting(ByteSpan bytes);

struct Hello {
  PeerIdentity self;
  std::string socketName; // of the initiator, so that ...
  std::vector<std::string> addresses; // ... the acceptor can connect to it, too
  std::string nonce; // of this connection
  uint32_t group = 0; // the target's id of the group that needs the pair
  uint64_t unexpectedLimit = 0; // bytes of eager messages that we keep
  std::string route;
  Bytes blob; // the route's own
  uint8_t descriptors = 0; // that follow, on a unix socket
  std::vector<std::pair<std::string, std::string>> rejected; // route, reason
  bool probe = false; // nothing is to come of it but whether it would work
  // The connection takes the place of this one of the pair, counted from 1 ...
  uint32_t replaces = 0; // 0: it is the first
  uint64_t lastSeen = 0; // ... by which we have seen messages to this number
};
Bytes encode(const Hello& hello);
Hello decodeHello(ByteSpan bytes);

enum class Verdict : uint8_t {
  kAccepted = 1,
  kRefused, // this route does not work, try another; `text` says why
  kCrossed, // the target is connecting to us at the same time: wait for it
  kStranger, // another instance, or it does not know this pair
  kLater, // this process lacks something now, which `text` tells
  kNotJoined, // it is not, or not yet, in the group that needs the connection
};
inline constexpr const char* kNotJoinedText =
    "its process answers, but is not (or no more, or not yet) in this life of "
    "the group";
// The acceptor's answer to a Greeting: its proof that it knows the secret; or
// kStranger or kLater, which nothing proves.
struct Challenge {
  Verdict verdict = Verdict::kStranger; // kAccepted: the rest is there
  std::string text;
  Bytes nonce; // kNonceBytes random bytes
  Bytes proof; // SessionKey::acceptorProof()
};
Bytes encode(const Challenge& challenge);
Challenge decodeChallenge(ByteSpan bytes);

struct Welcome {
  Verdict verdict = Verdict::kRefused;
  std::string text;
  Bytes blob;
  uint64_t lastSeen = 0; // as in the Hello
  uint8_t descriptors = 0; // the same
  uint64_t unexpectedLimit = 0; // the same
};
Bytes encode(const Welcome& welcome);
Welcome decodeWelcome(ByteSpan bytes);

// The connection works, and is used from now on; or it came to nothing.
struct Confirm {
  std::string nonce; // of the Hello
  Bytes blob; // Connection::verify()
  std::string problem; // empty: it works
};
Bytes encode(const Confirm& confirm);
Confirm decodeConfirm(ByteSpan bytes);

// This process's identity, with a new instance number. `hostId` takes the
// place of the machine's boot number unless it is empty.
PeerIdentity makeIdentity(const std::string& hostId = "");
// On one host, in one network namespace.
bool sameHost(const PeerIdentity& one, const PeerIdentity& other);
// The two meet at an abstract unix socket: they are on one host, and of one
// user. Those of different users meet by TCP, as if they were on two hosts.
bool meetLocally(const PeerIdentity& one, const PeerIdentity& other);

} // namespace dlslime
