#include "engine/wire_records.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "core/bytes.h"
#include "core/random.h"

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
  identity.host = reader.text();
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

} // namespace

Bytes encode(const AddressRecord& record) {
  ByteWriter writer;
  writePreamble(writer);
  writeIdentity(writer, record.identity);
  writer.blob(record.token);
  writer.text(record.socketName);
  writer.number(static_cast<uint32_t>(record.addresses.size()));
  for (const auto& address : record.addresses) {
    writer.text(address);
  }
  writer.number(record.group);
  writer.number(record.epoch);
  return writer.take();
}

AddressRecord decodeAddress(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the address record");
  AddressRecord record;
  record.identity = readIdentity(reader);
  record.token = readBlob(reader);
  record.socketName = reader.text();
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0;
       i < count && i < AddressRecord::kMostAddresses && reader.ok();
       ++i) {
    record.addresses.push_back(reader.text());
  }
  record.group = reader.number<uint32_t>();
  record.epoch = reader.number<uint64_t>();
  const bool valid = record.identity.instance.size() == kInstanceBytes &&
      record.token.size() == kTokenBytes && record.socketName.size() < 100;
  requireWhole(reader, valid, "the address record");
  return record;
}

Bytes encode(const Hello& hello) {
  ByteWriter writer;
  writePreamble(writer);
  writer.blob(hello.targetInstance);
  writer.blob(hello.token);
  writer.blob(encode(hello.self));
  writer.text(hello.nonce);
  writer.number(static_cast<uint8_t>(hello.policy));
  writer.number(hello.group);
  writer.text(hello.route);
  writer.blob(hello.blob);
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
  hello.targetInstance = readBlob(reader);
  hello.token = readBlob(reader);
  hello.self = decodeAddress(reader.blob());
  hello.nonce = reader.text();
  const auto policy = reader.number<uint8_t>();
  hello.policy = static_cast<RoutePolicy>(policy);
  hello.group = reader.number<uint32_t>();
  hello.route = reader.text();
  hello.blob = readBlob(reader);
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMostRejected && reader.ok(); ++i) {
    auto route = reader.text();
    hello.rejected.emplace_back(std::move(route), reader.text());
  }
  const auto probe = reader.number<uint8_t>();
  hello.probe = probe != 0;
  hello.replaces = reader.number<uint32_t>();
  hello.lastSeen = reader.number<uint64_t>();
  const bool valid =
      policy <= static_cast<uint8_t>(kLastRoutePolicy) && probe <= 1;
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
  return writer.take();
}

Welcome decodeWelcome(ByteSpan bytes) {
  ByteReader reader(bytes);
  readPreamble(reader, "the welcome");
  Welcome welcome;
  const auto verdict = reader.number<uint8_t>();
  welcome.verdict = static_cast<Verdict>(verdict);
  welcome.text = reader.text();
  welcome.blob = readBlob(reader);
  welcome.lastSeen = reader.number<uint64_t>();
  const bool valid = verdict >= static_cast<uint8_t>(Verdict::kAccepted) &&
      verdict <= static_cast<uint8_t>(Verdict::kNotJoined);
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
  confirm.problem = reader.text();
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
  identity.uid = static_cast<uint32_t>(getuid());
  return identity;
}

bool sameHost(const PeerIdentity& one, const PeerIdentity& other) {
  return one.bootId == other.bootId &&
      one.networkNamespace == other.networkNamespace;
}

} // namespace dlslime
