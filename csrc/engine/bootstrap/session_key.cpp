#include "engine/bootstrap/session_key.h"

#include "base/random.h"

namespace dlslime {

namespace {

// The use of a code enters the code, so a code made for a use is invalid for
// all remaining uses.
constexpr uint8_t kAcceptorProof = 1;
constexpr uint8_t kPairSecret = 2;
constexpr uint8_t kRecordOfInitiator = 3;
constexpr uint8_t kRecordOfAcceptor = 4;

uint8_t useOf(SessionKey::End from) {
  return from == SessionKey::End::kInitiator ? kRecordOfInitiator
                                             : kRecordOfAcceptor;
}

Bytes bytesOf(const Digest& digest) {
  return {digest.begin(), digest.end()};
}

} // namespace

SessionKey::SessionKey(
    ByteSpan secret,
    const Greeting& greeting,
    ByteSpan acceptorNonce)
    : key_(Hmac(secret)
               .add("dlslime handshake")
               .add(encode(greeting))
               .add(acceptorNonce)
               .finish()) {}

Digest SessionKey::codeOf(uint8_t use, uint8_t number, ByteSpan bytes) const {
  const std::byte head[] = {std::byte{use}, std::byte{number}};
  return Hmac(key_).add(ByteSpan(head)).add(bytes).finish();
}

Bytes SessionKey::acceptorProof() const {
  return bytesOf(codeOf(kAcceptorProof, 0, {}));
}

bool SessionKey::provenBy(ByteSpan proof) const {
  return equalSecrets(proof, codeOf(kAcceptorProof, 0, {}));
}

Bytes SessionKey::seal(End from, uint8_t number, ByteSpan record) const {
  Bytes sealed(record.begin(), record.end());
  const auto code = codeOf(useOf(from), number, record);
  sealed.insert(sealed.end(), code.begin(), code.end());
  return sealed;
}

ByteSpan SessionKey::open(End from, uint8_t number, ByteSpan sealed) const {
  const size_t size = sealed.size() - std::min(sealed.size(), sizeof(Digest));
  const auto record = sealed.first(size);
  if (!equalSecrets(
          sealed.subspan(size), codeOf(useOf(from), number, record))) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the seal of a handshake record is wrong: the other end does not know "
        "the secret, or the record was changed on the way");
  }
  return record;
}

Bytes SessionKey::pairSecret() const {
  return bytesOf(codeOf(kPairSecret, 0, {}));
}

} // namespace dlslime
