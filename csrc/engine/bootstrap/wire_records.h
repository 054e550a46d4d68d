#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/config.h"
#include "interface/transport.h"

namespace dlslime {

// Protocol version, raised with every change of meaning in docs/protocol.md.
// Processes of different versions refuse each other with an error naming both
// versions.
constexpr uint16_t kProtocolVersion = 16;

// Each record has fields(), which calls `field` with the name and the value of
// each field in the order of the bytes: the one list for encoding, decoding and
// the tables of docs/protocol.md.

constexpr size_t kInstanceBytes = 16;
// Writes the beginning of every record: magic and protocol version.
void writePreamble(ByteWriter& writer);
// Throws Error about `what` when the magic or the protocol version is wrong.
void readPreamble(ByteReader& reader, const char* what);
// Throws Error about `what` unless the record is valid and read to the end.
void requireWhole(const ByteReader& reader, bool valid, const char* what);

// Record published by each rank in the group's store: how to reach the rank's
// process, and the token that proves a peer to be a reader of the store.
struct AddressRecord {
  PeerIdentity identity;
  Bytes token; // 32 random bytes, known to readers of the store only
  // Unix socket of the process's listener: an abstract name, and the name in
  // the rendezvous directory.
  std::string socketName;
  // Most TCP addresses in a record; a reader refuses more.
  static constexpr size_t kMostAddresses = 16;
  std::vector<std::string> addresses; // of the TCP listener
  uint32_t group = 0; // the process's id of the group
  uint64_t epoch = 0; // see Group::epoch()
  // Time of joining, in ns of the host's monotonic clock.
  int64_t joined = 0;

  template <typename Record, typename Field>
  static void fields(Record& record, const Field& field) {
    field("identity", record.identity);
    field("socket name", record.socketName);
    field("addresses", record.addresses);
    field("token", record.token);
    field("group", record.group);
    field("epoch", record.epoch);
    field("joined", record.joined);
  }
};
Bytes encode(const AddressRecord& record);
// Throws Error when the record is truncated, oversized, or of a foreign
// protocol version.
AddressRecord decodeAddress(ByteSpan bytes);

// What a rank that could not begin leaves under its address key: a mark, the
// seconds since 1970, a colon and the reason. Python writes the note without an
// engine, which may be what is missing.
struct FailureNote {
  static constexpr std::string_view kMark = "DLSLIME-FAILED:";
  int64_t seconds = 0; // since 1970; 0: not told
  std::string reason; // fit for texts
};
// Returns nothing if the bytes are no failure note.
std::optional<FailureNote> failureNote(ByteSpan bytes);

// The handshake on a control socket consists of Greeting, Challenge, Hello,
// Welcome and Confirm, in order. The last three are sealed (SessionKey).

constexpr size_t kNonceBytes = 32;
constexpr uint8_t kMostDescriptors = 4;

// Kind of the secret shared by both ends of a handshake.
enum class SecretKind : uint8_t {
  kToken = 1, // of the acceptor's address record
  kPair, // of the connection to be replaced, or compared with a probe
};
struct Greeting {
  Bytes target; // instance meant by the initiator
  Bytes self; // instance of the initiator
  RoutePolicy policy = RoutePolicy::kAuto;
  SecretKind secret = SecretKind::kToken;
  Bytes nonce; // kNonceBytes random bytes

  template <typename Record, typename Field>
  static void fields(Record& record, const Field& field) {
    field("target", record.target);
    field("self", record.self);
    field("policy", record.policy);
    field("secret", record.secret);
    field("nonce", record.nonce);
  }
};
Bytes encode(const Greeting& greeting);
Greeting decodeGreeting(ByteSpan bytes);

struct Hello {
  PeerIdentity self;
  std::string socketName; // of the initiator, for connections back
  std::vector<std::string> addresses; // the same over TCP
  std::string nonce; // of the connection
  uint32_t group = 0; // the target's id of the group needing the connection
  uint64_t unexpectedLimit = 0; // bytes of eager messages the initiator keeps
  std::string route;
  Bytes blob; // the route's own
  uint8_t descriptors = 0; // number of descriptors following the record
  std::vector<std::pair<std::string, std::string>> rejected; // route, reason
  bool probe = false; // asks only whether the connection would work
  // Number, from 1, of the pair's connection to be replaced; 0: the connection
  // is the first.
  uint32_t replaces = 0;
  // Number of the last message seen by the initiator over the replaced
  // connection.
  uint64_t lastSeen = 0;

  template <typename Record, typename Field>
  static void fields(Record& record, const Field& field) {
    field("self", record.self);
    field("socket name", record.socketName);
    field("addresses", record.addresses);
    field("nonce", record.nonce);
    field("group", record.group);
    field("unexpected limit", record.unexpectedLimit);
    field("route", record.route);
    field("blob", record.blob);
    field("descriptors", record.descriptors);
    field("rejected", record.rejected);
    field("probe", record.probe);
    field("replaces", record.replaces);
    field("last seen", record.lastSeen);
  }
};
Bytes encode(const Hello& hello);
Hello decodeHello(ByteSpan bytes);

enum class Verdict : uint8_t {
  kAccepted = 1,
  kRefused, // the route does not work, for the reason in `text`: try the next
  kCrossed, // the target is connecting to the initiator, or has connected: wait
  kStranger, // the target is a wrong instance, or does not know the pair
  kLater, // the target lacks a resource now, named in `text`
  kNotJoined, // the target is not (yet) in the group needing the connection
};
inline constexpr const char* kNotJoinedText =
    "its process answers, but is not (or no more, or not yet) in this life of "
    "the group";
// Acceptor's answer to a Greeting: a proof of knowing the secret; or kStranger
// or kLater, both without proof.
struct Challenge {
  Verdict verdict = Verdict::kStranger; // kAccepted: nonce and proof are set
  std::string text;
  Bytes nonce; // kNonceBytes random bytes
  Bytes proof; // SessionKey::acceptorProof()

  template <typename Record, typename Field>
  static void fields(Record& record, const Field& field) {
    field("verdict", record.verdict);
    field("text", record.text);
    field("nonce", record.nonce);
    field("proof", record.proof);
  }
};
Bytes encode(const Challenge& challenge);
Challenge decodeChallenge(ByteSpan bytes);

struct Welcome {
  Verdict verdict = Verdict::kRefused;
  std::string text;
  Bytes blob;
  uint64_t lastSeen = 0; // number of the last message seen by the acceptor
  uint8_t descriptors = 0; // number of descriptors following the record
  uint64_t unexpectedLimit = 0; // bytes of eager messages the acceptor keeps

  template <typename Record, typename Field>
  static void fields(Record& record, const Field& field) {
    field("verdict", record.verdict);
    field("text", record.text);
    field("blob", record.blob);
    field("last seen", record.lastSeen);
    field("descriptors", record.descriptors);
    field("unexpected limit", record.unexpectedLimit);
  }
};
Bytes encode(const Welcome& welcome);
Welcome decodeWelcome(ByteSpan bytes);

// Initiator's final word: the connection works and is used from now on, or has
// come to nothing.
struct Confirm {
  std::string nonce; // of the Hello
  Bytes blob; // result of Connection::verify()
  std::string problem; // empty: the connection works

  template <typename Record, typename Field>
  static void fields(Record& record, const Field& field) {
    field("nonce", record.nonce);
    field("blob", record.blob);
    field("problem", record.problem);
  }
};
Bytes encode(const Confirm& confirm);
Confirm decodeConfirm(ByteSpan bytes);

// Returns this process's identity, with a new instance number. A non-empty
// `hostId` replaces the machine's boot id; `directory` is the id of the
// rendezvous directory.
PeerIdentity makeIdentity(
    const std::string& hostId = "",
    const std::string& directory = "");
// Returns whether both processes share a host and a network namespace.
bool sameHost(const PeerIdentity& one, const PeerIdentity& other);
// Returns whether both processes, of one user on one host, meet at a unix
// socket: an abstract one within a network namespace, else one in the
// rendezvous directory that both have. Processes of different users meet over
// TCP, as on two hosts.
bool meetLocally(const PeerIdentity& one, const PeerIdentity& other);

} // namespace dlslime
