#include "engine/bootstrap/wire_records.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/random.h"

namespace dlslime {

namespace {

constexpr uint64_t kMagic = 0x31454d494c534c44; // "DLSLIME1"
constexpr size_t kTokenBytes = 32;
constexpr uint32_t kMostRejected = 16;

} // namespace

void writePreamble(ByteWriter& writer) {
  writer.number(kMagic);
  writer.number(kProtocolVersion);
}

void readPreamble(ByteReader& reader, const char* what) {
  const auto magic = reader.number<uint64_t>();
  const auto version = reader.number<uint16_t>();
  if (!reader.ok() || magic != kMagic) {
    throw Error(
        ErrorCode::kPeerFailed, std::string(what) + " is not of dlslime");
  }
  if (version != kProtocolVersion) {
    throw Error(
        ErrorCode::kPeerFailed,
        std::string(what) + " has protocol version " + std::to_string(version) +
            ", this process has " + std::to_string(kProtocolVersion) +
            ": install the same dlslime on every rank");
  }
}

void requireWhole(const ByteReader& reader, bool valid, const char* what) {
  if (!reader.atEnd() || !valid) {
    throw Error(ErrorCode::kPeerFailed, std::string(what) + " is malformed");
  }
}

namespace {

void writeIdentity(ByteWriter& writer, const PeerIdentity& identity) {
  writer.blob(identity.instance);
  writer.text(identity.bootId);
  writer.text(identity.host);
  writer.number(identity.networkNamespace);
  writer.number(identity.pid);
  writer.number(identity.uid);
}

Bytes readBlob(ByteReader& reader) {
  const auto blob = reader.blob();
  return {blob.begin(), blob.end()};
}

PeerIdentity readIdentity(ByteReader& reader) {
  PeerIdentity identity;
  identity.instance = readBlob(reader);
  identity.bootId = reader.text();
  identity.host = printable(reader.text());
  identity.networkNamespace = reader.number<uint64_t>();
  identity.pid = reader.number<uint32_t>();
  identity.uid = reader.number<uint32_t>();
  return identity;
}

std::string readLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Reads text of a foreign process, made printable for logs.
std::string readText(ByteReader& reader) {
  return printable(reader.text());
}

// Writes how to connect to a process.
void writeContact(
    ByteWriter& writer,
    const PeerIdentity& identity,
    const std::string& socketName,
    const std::vector<std::string>& addresses) {
  writeIdentity(writer, identity);
  writer.text(socketName);
  writer.number(static_cast<uint32_t>(addresses.size()));
  for (const auto& address : addresses) {
    writer.text(address);
  }
}

struct Contact {
  PeerIdentity identity;
  std::string socketName;
  std::vector<std::string> addresses;
  bool valid = false;
};

Contact readContact(ByteReader& reader) {
  Contact contact;
  contact.identity = readIdentity(reader);
  contact.socketName = reader.text();
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0;
       i < count && i < AddressRecord::kMostAddresses && reader.ok();
       ++i) {
    contact.addresses.push_back(readText(reader));
  }
  contact.valid = contact.identity.instance.size() == kInstanceBytes &&
      contact.socketName.size() < 100;
  return contact;
}

} // namespace

Bytes encode(const AddressRecord& record) {
  ByteWriter writer;
  writePreamble(writer);
  writeContact(writer, record.identity, record.socketName, record.addresses);
  writer.blob(record.token);
  writer.number(record.group);
  writer.number(record.epoch);
  writer.number(record.joined);
  return writer.take();
}

AddressRecord decodeAddress(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the address record");
  AddressRecord record;
  auto contact = readContact(reader);
  record.identity = std::move(contact.identity);
  record.socketName = std::move(contact.socketName);
  record.addresses = std::move(contact.addresses);
  record.token = readBlob(reader);
  record.group = reader.number<uint32_t>();
  record.epoch = reader.number<uint64_t>();
  record.joined = reader.number<int64_t>();
  const bool valid = contact.valid && record.token.size() == kTokenBytes;
  requireWhole(reader, valid, "the address record");
  return record;
}

Bytes encode(const Greeting& greeting) {
  ByteWriter writer;
  writePreamble(writer);
  writer.blob(greeting.target);
  writer.blob(greeting.self);
  writer.number(static_cast<uint8_t>(greeting.policy));
  writer.number(static_cast<uint8_t>(greeting.secret));
  writer.blob(greeting.nonce);
  return writer.take();
}

Greeting decodeGreeting(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the greeting");
  Greeting greeting;
  greeting.target = readBlob(reader);
  greeting.self = readBlob(reader);
  const auto policy = reader.number<uint8_t>();
  greeting.policy = static_cast<RoutePolicy>(policy);
  const auto secret = reader.number<uint8_t>();
  greeting.secret = static_cast<SecretKind>(secret);
  greeting.nonce = readBlob(reader);
  const bool valid = greeting.target.size() == kInstanceBytes &&
      greeting.self.size() == kInstanceBytes &&
      policy <= static_cast<uint8_t>(kLastRoutePolicy) &&
      (greeting.secret == SecretKind::kToken ||
       greeting.secret == SecretKind::kPair) &&
      greeting.nonce.size() == kNonceBytes;
  requireWhole(reader, valid, "the greeting");
  return greeting;
}

Bytes encode(const Challenge& challenge) {
  ByteWriter writer;
  writePreamble(writer);
  writer.number(static_cast<uint8_t>(challenge.verdict));
  writer.text(challenge.text);
  writer.blob(challenge.nonce);
  writer.blob(challenge.proof);
  return writer.take();
}

Challenge decodeChallenge(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the challenge");
  Challenge challenge;
  challenge.verdict = static_cast<Verdict>(reader.number<uint8_t>());
  challenge.text = readText(reader);
  challenge.nonce = readBlob(reader);
  challenge.proof = readBlob(reader);
  const bool proves = challenge.verdict == Verdict::kAccepted;
  const bool valid = proves ? challenge.nonce.size() == kNonceBytes
                            : challenge.verdict == Verdict::kStranger ||
          challenge.verdict == Verdict::kLater;
  requireWhole(reader, valid, "the challenge");
  return challenge;
}

Bytes encode(const Hello& hello) {
  ByteWriter writer;
  writePreamble(writer);
  writeContact(writer, hello.self, hello.socketName, hello.addresses);
  writer.text(hello.nonce);
  writer.number(hello.group);
  writer.number(hello.unexpectedLimit);
  writer.text(hello.route);
  writer.blob(hello.blob);
  writer.number(hello.descriptors);
  writer.number(static_cast<uint32_t>(hello.rejected.size()));
  for (const auto& [route, reason] : hello.rejected) {
    writer.text(route);
    writer.text(reason);
  }
  writer.number(static_cast<uint8_t>(hello.probe));
  writer.number(hello.replaces);
  writer.number(hello.lastSeen);
  return writer.take();
}

Hello decodeHello(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the hello");
  Hello hello;
  auto contact = readContact(reader);
  hello.self = std::move(contact.identity);
  hello.socketName = std::move(contact.socketName);
  hello.addresses = std::move(contact.addresses);
  hello.nonce = reader.text();
  hello.group = reader.number<uint32_t>();
  hello.unexpectedLimit = reader.number<uint64_t>();
  hello.route = readText(reader);
  hello.blob = readBlob(reader);
  hello.descriptors = reader.number<uint8_t>();
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMostRejected && reader.ok(); ++i) {
    auto route = readText(reader);
    hello.rejected.emplace_back(std::move(route), readText(reader));
  }
  const auto probe = reader.number<uint8_t>();
  hello.probe = probe != 0;
  hello.replaces = reader.number<uint32_t>();
  hello.lastSeen = reader.number<uint64_t>();
  const bool valid = contact.valid && probe <= 1 &&
      hello.nonce.size() <= kNonceBytes &&
      hello.descriptors <= kMostDescriptors;
  requireWhole(reader, valid, "the hello");
  return hello;
}

Bytes encode(const Welcome& welcome) {
  ByteWriter writer;
  writePreamble(writer);
  writer.number(static_cast<uint8_t>(welcome.verdict));
  writer.text(welcome.text);
  writer.blob(welcome.blob);
  writer.number(welcome.lastSeen);
  writer.number(welcome.descriptors);
  writer.number(welcome.unexpectedLimit);
  return writer.take();
}

Welcome decodeWelcome(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the welcome");
  Welcome welcome;
  const auto verdict = reader.number<uint8_t>();
  welcome.verdict = static_cast<Verdict>(verdict);
  welcome.text = readText(reader);
  welcome.blob = readBlob(reader);
  welcome.lastSeen = reader.number<uint64_t>();
  welcome.descriptors = reader.number<uint8_t>();
  welcome.unexpectedLimit = reader.number<uint64_t>();
  const bool valid = verdict >= static_cast<uint8_t>(Verdict::kAccepted) &&
      verdict <= static_cast<uint8_t>(Verdict::kNotJoined) &&
      welcome.descriptors <= kMostDescriptors;
  requireWhole(reader, valid, "the welcome");
  return welcome;
}

Bytes encode(const Confirm& confirm) {
  ByteWriter writer;
  writePreamble(writer);
  writer.text(confirm.nonce);
  writer.blob(confirm.blob);
  writer.text(confirm.problem);
  return writer.take();
}

Confirm decodeConfirm(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the confirmation");
  Confirm confirm;
  confirm.nonce = reader.text();
  confirm.blob = readBlob(reader);
  confirm.problem = readText(reader);
  requireWhole(reader, true, "the confirmation");
  return confirm;
}

PeerIdentity makeIdentity(const std::string& hostId) {
  PeerIdentity identity;
  identity.instance = randomBytes(kInstanceBytes);
  identity.bootId =
      hostId.empty() ? readLine("/proc/sys/kernel/random/boot_id") : hostId;
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  identity.host = host;
  struct stat info {};
  if (stat("/proc/self/ns/net", &info) == 0) {
    identity.networkNamespace = info.st_ino;
  }
  identity.pid = static_cast<uint32_t>(getpid());
  identity.uid = static_cast<uint32_t>(geteuid());
  return identity;
}

bool sameHost(const PeerIdentity& one, const PeerIdentity& other) {
  return one.bootId == other.bootId &&
      one.networkNamespace == other.networkNamespace;
}

bool meetLocally(const PeerIdentity& one, const PeerIdentity& other) {
  return sameHost(one, other) && one.uid == other.uid;
}

} // namespace dlslime
