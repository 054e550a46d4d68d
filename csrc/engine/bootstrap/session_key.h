#pragma once

#include "base/crypto/sha256.h"
#include "engine/bootstrap/wire_records.h"

namespace dlslime {

// Key of a single handshake. Both ends derive the key from the shared secret
// and from nonces drawn for the handshake, so the secret never travels, and
// recorded bytes are of no use in a later handshake.
class SessionKey {
 public:
  SessionKey(ByteSpan secret, const Greeting& greeting, ByteSpan acceptorNonce);

  // Returns the proof, for the initiator, that the acceptor knows the secret.
  Bytes acceptorProof() const;
  bool provenBy(ByteSpan proof) const;

  enum class End : uint8_t { kInitiator, kAcceptor };
  // Returns the record followed by a seal. `number` counts the sealed records
  // of end `from` in the handshake, from 0.
  Bytes seal(End from, uint8_t number, ByteSpan record) const;
  // Returns the record without the seal. Throws Error{kPeerFailed} when the
  // seal is wrong for `from` and `number`.
  ByteSpan open(End from, uint8_t number, ByteSpan sealed) const;

  // Returns the secret by which both ends will prove themselves when replacing
  // the connection.
  Bytes pairSecret() const;

 private:
  Digest codeOf(uint8_t use, uint8_t number, ByteSpan bytes) const;

  Digest key_;
};

} // namespace dlslime
