#include "engine/bootstrap/wire_records.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/random.h"

namespace dlslime {

namespace {

constexpr uint64_t kMagic = 0x31454d494c534c44; // "DLSLIME1"
constexpr size_t kTokenBytes = 32;
// Most entries of a list: of addresses, and of rejected routes.
constexpr uint32_t kMostListed = 16;
static_assert(AddressRecord::kMostAddresses == kMostListed);
constexpr size_t kMostSocketName = 100; // bytes

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

// Writes a value as the tables of docs/protocol.md say.
class FieldWriter {
 public:
  explicit FieldWriter(ByteWriter& writer) : writer_(writer) {}

  template <typename Value>
  void operator()(const char* /*name*/, const Value& value) const {
    put(value);
  }

 private:
  template <typename Number>
  void put(const Number& number) const {
    if constexpr (std::is_enum_v<Number> || std::is_same_v<Number, bool>) {
      writer_.number(static_cast<uint8_t>(number));
    } else {
      writer_.number(number);
    }
  }
  void put(const std::string& text) const {
    writer_.text(text);
  }
  void put(const Bytes& bytes) const {
    writer_.blob(bytes);
  }
  void put(const PeerIdentity& identity) const {
    put(identity.instance);
    put(identity.bootId);
    put(identity.host);
    put(identity.networkNamespace);
    put(identity.pid);
    put(identity.uid);
    put(identity.hostUid);
    put(identity.directory);
  }
  void put(const std::pair<std::string, std::string>& pair) const {
    put(pair.first);
    put(pair.second);
  }
  template <typename Value>
  void put(const std::vector<Value>& list) const {
    put(static_cast<uint32_t>(list.size()));
    for (const auto& value : list) {
      put(value);
    }
  }

  ByteWriter& writer_;
};

// Reads what FieldWriter writes. Sound only if the bytes hold what a field may
// hold, besides the bounds that the reader checks.
class FieldReader {
 public:
  FieldReader(ByteReader& reader, bool& sound)
      : reader_(reader), sound_(sound) {}

  template <typename Value>
  void operator()(const char* /*name*/, Value& value) const {
    get(value);
  }

 private:
  template <typename Number>
  void get(Number& number) const {
    if constexpr (std::is_same_v<Number, bool>) {
      const auto byte = reader_.number<uint8_t>();
      sound_ &= byte <= 1;
      number = byte != 0;
    } else if constexpr (std::is_enum_v<Number>) {
      number = static_cast<Number>(reader_.number<uint8_t>());
    } else {
      number = reader_.number<Number>();
    }
  }
  void get(std::string& text) const {
    text = reader_.text();
  }
  void get(Bytes& bytes) const {
    const auto blob = reader_.blob();
    bytes.assign(blob.begin(), blob.end());
  }
  void get(PeerIdentity& identity) const {
    get(identity.instance);
    get(identity.bootId);
    get(identity.host);
    get(identity.networkNamespace);
    get(identity.pid);
    get(identity.uid);
    get(identity.hostUid);
    get(identity.directory);
    identity.host = printable(identity.host);
    sound_ &= identity.instance.size() == kInstanceBytes;
  }
  void get(std::pair<std::string, std::string>& pair) const {
    get(pair.first);
    get(pair.second);
  }
  template <typename Value>
  void get(std::vector<Value>& list) const {
    const auto count = reader_.number<uint32_t>();
    for (uint32_t i = 0; i < count && i < kMostListed && reader_.ok(); ++i) {
      get(list.emplace_back());
    }
  }

  ByteReader& reader_;
  bool& sound_;
};

template <typename Record>
Bytes encodeRecord(const Record& record) {
  ByteWriter writer;
  writePreamble(writer);
  Record::fields(record, FieldWriter(writer));
  return writer.take();
}

// Throws Error about `what` unless all bytes are a record for which `valid` is
// true. Texts are as the peer sent them.
template <typename Record, typename Valid>
Record decodeRecord(ByteSpan bytes, const char* what, const Valid& valid) {
  ByteReader reader(bytes);
  readPreamble(reader, what);
  Record record;
  bool sound = true;
  Record::fields(record, FieldReader(reader, sound));
  requireWhole(reader, sound && valid(record), what);
  return record;
}

void makePrintable(std::vector<std::string>& texts) {
  for (auto& text : texts) {
    text = printable(text);
  }
}

bool isSocketName(const std::string& name) {
  return name.size() < kMostSocketName;
}

std::string readLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

} // namespace

Bytes encode(const AddressRecord& record) {
  return encodeRecord(record);
}

AddressRecord decodeAddress(ByteSpan bytes) {
  auto record = decodeRecord<AddressRecord>(
      bytes, "the address record", [](const AddressRecord& read) {
        return isSocketName(read.socketName) &&
            read.token.size() == kTokenBytes;
      });
  makePrintable(record.addresses);
  return record;
}

Bytes encode(const Greeting& greeting) {
  return encodeRecord(greeting);
}

Greeting decodeGreeting(ByteSpan bytes) {
  return decodeRecord<Greeting>(
      bytes, "the greeting", [](const Greeting& read) {
        return read.target.size() == kInstanceBytes &&
            read.self.size() == kInstanceBytes &&
            read.policy <= kLastRoutePolicy &&
            (read.secret == SecretKind::kToken ||
             read.secret == SecretKind::kPair) &&
            read.nonce.size() == kNonceBytes;
      });
}

Bytes encode(const Challenge& challenge) {
  return encodeRecord(challenge);
}

Challenge decodeChallenge(ByteSpan bytes) {
  auto challenge = decodeRecord<Challenge>(
      bytes, "the challenge", [](const Challenge& read) {
        return read.verdict == Verdict::kAccepted
            ? read.nonce.size() == kNonceBytes
            : read.verdict == Verdict::kStranger ||
                read.verdict == Verdict::kLater;
      });
  challenge.text = printable(challenge.text);
  return challenge;
}

Bytes encode(const Hello& hello) {
  return encodeRecord(hello);
}

Hello decodeHello(ByteSpan bytes) {
  auto hello = decodeRecord<Hello>(bytes, "the hello", [](const Hello& read) {
    return isSocketName(read.socketName) && read.nonce.size() <= kNonceBytes &&
        read.descriptors <= kMostDescriptors;
  });
  makePrintable(hello.addresses);
  hello.route = printable(hello.route);
  for (auto& [route, reason] : hello.rejected) {
    route = printable(route);
    reason = printable(reason);
  }
  return hello;
}

Bytes encode(const Welcome& welcome) {
  return encodeRecord(welcome);
}

Welcome decodeWelcome(ByteSpan bytes) {
  auto welcome =
      decodeRecord<Welcome>(bytes, "the welcome", [](const Welcome& read) {
        return read.verdict >= Verdict::kAccepted &&
            read.verdict <= Verdict::kNotJoined &&
            read.descriptors <= kMostDescriptors;
      });
  welcome.text = printable(welcome.text);
  return welcome;
}

Bytes encode(const Confirm& confirm) {
  return encodeRecord(confirm);
}

Confirm decodeConfirm(ByteSpan bytes) {
  auto confirm = decodeRecord<Confirm>(
      bytes, "the confirmation", [](const Confirm& /*read*/) { return true; });
  confirm.problem = printable(confirm.problem);
  return confirm;
}

std::optional<FailureNote> failureNote(ByteSpan bytes) {
  std::string_view text(
      reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.rfind(FailureNote::kMark, 0) != 0) {
    return std::nullopt;
  }
  text.remove_prefix(FailureNote::kMark.size());
  FailureNote note;
  const auto [end, problem] =
      std::from_chars(text.data(), text.data() + text.size(), note.seconds);
  const auto size = static_cast<size_t>(end - text.data());
  if (problem == std::errc() && text.substr(size, 1) == ":") {
    text.remove_prefix(size + 1);
  } else {
    note.seconds = 0;
  }
  note.reason = printable(text);
  return note;
}

namespace {
// Returns the user outside of the process's user namespace; `uid` where the
// namespace does not map it.
uint32_t userOutside(uint32_t uid) {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  while (map >> inside >> outside >> count) {
    if (inside <= uid && uid - inside < count) {
      return static_cast<uint32_t>(outside + uid - inside);
    }
  }
  return uid;
}
} // namespace

PeerIdentity makeIdentity(
    const std::string& hostId,
    const std::string& directory) {
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
  identity.hostUid = userOutside(identity.uid);
  identity.directory = directory;
  return identity;
}

bool sameHost(const PeerIdentity& one, const PeerIdentity& other) {
  return one.bootId == other.bootId &&
      one.networkNamespace == other.networkNamespace;
}

bool meetLocally(const PeerIdentity& one, const PeerIdentity& other) {
  const bool shared = one.bootId == other.bootId && !one.directory.empty() &&
      one.directory == other.directory;
  return (sameHost(one, other) || shared) && one.hostUid == other.hostUid;
}

} // namespace dlslime
