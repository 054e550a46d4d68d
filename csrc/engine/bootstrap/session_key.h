#pragma once

#include "base/crypto/sha256.h"
#include "engine/bootstrap/wire_records.h"

namespace dlslime {

// A key of one handshake, which both ends derive from the secret that they
// share and from what each has drawn for this handshake: the secret itself
// never travels, and nothing that was recorded is of use another time.
class SessionKey {
 public:
  SessionKey(ByteSpan secret, const Greeting& greeting, ByteSpan acceptorNonce);

  // Shows the initiator that the acceptor knows the secret.
  Bytes acceptorProof() const;
  bool provenBy(ByteSpan proof) const;

  enum class End : uint8_t { kInitiator, kAcceptor };
  // A record of one end with its seal behind it; the `number`-th of that end in
  // this handshake, counted from 0.
  Bytes seal(End from, uint8_t number, ByteSpan record) const;
  // The record. Throws Error{kPeerFailed}: the seal is not that end's.
  ByteSpan open(End from, uint8_t number, ByteSpan sealed) const;

  // What the two will prove themselves with when they replace the connection.
  Bytes pairSecret() const;

 private:
  Digest codeOf(uint8_t use, uint8_t number, ByteSpan bytes) const;

  Digest key_;
};

} // namespace dlslime
