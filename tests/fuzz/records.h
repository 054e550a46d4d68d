#pragma once

#include "engine/bootstrap/wire_records.h"
#include "fuzz.h"

#if DLSLIME_HAVE_VERBS
#include "transports/rdma/end_address.h"
#endif

// Rules for every record taken by a decoder.
namespace dlslime::fuzz {

inline void checkContact(
    const PeerIdentity& identity,
    const std::string& socketName,
    const std::vector<std::string>& addresses) {
  require(identity.instance.size() == kInstanceBytes, "an instance is whole");
  require(socketName.size() < 100, "a socket's name fits");
  require(
      addresses.size() <= AddressRecord::kMostAddresses,
      "addresses are no more than a record may have");
  requirePlain(identity.host);
  for (const auto& address : addresses) {
    requirePlain(address);
  }
}

inline void check(const AddressRecord& record) {
  checkContact(record.identity, record.socketName, record.addresses);
  require(record.token.size() == 32, "a token is whole");
}
inline void check(const Greeting& greeting) {
  require(greeting.target.size() == kInstanceBytes, "a target is whole");
  require(greeting.self.size() == kInstanceBytes, "an instance is whole");
  require(greeting.nonce.size() == kNonceBytes, "a nonce is whole");
  require(greeting.policy <= kLastRoutePolicy, "a policy is known");
}
inline void check(const Challenge& challenge) {
  requirePlain(challenge.text);
  require(
      challenge.verdict != Verdict::kAccepted ||
          challenge.nonce.size() == kNonceBytes,
      "a challenge has its nonce");
}
inline void check(const Hello& hello) {
  checkContact(hello.self, hello.socketName, hello.addresses);
  require(hello.nonce.size() <= kNonceBytes, "a nonce is short");
  require(hello.descriptors <= kMostDescriptors, "descriptors are few");
  require(hello.rejected.size() <= 16, "rejected routes are few");
  requirePlain(hello.route);
  for (const auto& [route, reason] : hello.rejected) {
    requirePlain(route);
    requirePlain(reason);
  }
}
inline void check(const Welcome& welcome) {
  require(welcome.descriptors <= kMostDescriptors, "descriptors are few");
  require(
      welcome.verdict >= Verdict::kAccepted &&
          welcome.verdict <= Verdict::kNotJoined,
      "a verdict is known");
  requirePlain(welcome.text);
}
inline void check(const Confirm& confirm) {
  requirePlain(confirm.problem);
}

} // namespace dlslime::fuzz

#if DLSLIME_HAVE_VERBS
namespace dlslime::rdma {
inline void check(const EndAddress& address) {
  fuzz::require(
      !address.rails.empty() && address.rails.size() <= EndAddress::kMostRails,
      "there are one to eight rails");
}
inline Bytes encode(const EndAddress& address) {
  return address.encode();
}
} // namespace dlslime::rdma
#endif
