// Sealed records: a record opens only if sealed for the exact use.
#include "engine/bootstrap/session_key.h"

#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

using End = SessionKey::End;

const SessionKey& key() {
  static const auto* const made = new SessionKey(
      Bytes(32, std::byte{7}),
      {Bytes(16, std::byte{1}),
       Bytes(16, std::byte{2}),
       RoutePolicy::kAuto,
       SecretKind::kToken,
       Bytes(kNonceBytes, std::byte{3})},
      Bytes(kNonceBytes, std::byte{4}));
  return *made;
}

bool opens(End from, uint8_t number, ByteSpan sealed) {
  return takes([&] { key().open(from, number, sealed); });
}

void checkSealed(Input& input, End from, uint8_t number) {
  const auto flipped = input.number<uint32_t>();
  const auto record = copyOf(input.rest());
  auto sealed = key().seal(from, number, record);
  const auto opened = key().open(from, number, sealed);
  require(copyOf(opened) == record, "a sealed record opens");
  const auto other = from == End::kInitiator ? End::kAcceptor : End::kInitiator;
  require(!opens(other, number, sealed), "a seal is of one end");
  require(!opens(from, number ^ 1, sealed), "a seal is of one record");
  sealed[flipped / 8 % sealed.size()] ^= std::byte(1U << flipped % 8);
  require(!opens(from, number, sealed), "a changed record does not open");
}

void run(Input input) {
  const auto kind = input.number<uint8_t>();
  const auto from = kind % 2 == 0 ? End::kInitiator : End::kAcceptor;
  const auto number = static_cast<uint8_t>(kind / 2 % 2);
  if (kind >= 128) {
    checkSealed(input, from, number);
    return;
  }
  const auto bytes = copyOf(input.rest());
  require(
      !opens(from, number, bytes), "what neither end has sealed does not open");
  require(!key().provenBy(bytes), "and proves nothing");
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
