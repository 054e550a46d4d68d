#pragma once

#include "engine/bootstrap/wire_records.h"
#include "fakes/world.h"

// An example of each record of the handshake, with a value in every field.
namespace dlslime::testing {

inline PeerIdentity identity() {
  PeerIdentity self;
  self.instance = pattern(16, 5);
  self.bootId = "boot-7";
  self.host = "host.example";
  self.networkNamespace = 0x123456789abcULL;
  self.pid = 4321;
  self.uid = 1000;
  self.hostUid = 101000;
  self.directory = "65024:77";
  return self;
}

inline AddressRecord address() {
  return {
      identity(),
      pattern(32, 9),
      "dlslime-0123",
      {"10.9.0.1:4711", "[2001:db8::1]:4711"},
      77,
      3,
      1234567890123};
}

inline Hello hello() {
  Hello made;
  made.self = identity();
  made.socketName = address().socketName;
  made.addresses = address().addresses;
  made.nonce = "abcdef";
  made.group = 12;
  made.route = "shm";
  made.blob = pattern(28, 3);
  made.descriptors = 3;
  made.rejected = {{"rdma", "no device"}, {"cuda", ""}};
  made.probe = true;
  made.replaces = 3;
  made.lastSeen = 1ULL << 40;
  return made;
}

inline Greeting greeting() {
  return {
      pattern(16, 1),
      pattern(16, 2),
      RoutePolicy::kGloo,
      SecretKind::kPair,
      pattern(32, 3)};
}

inline Challenge challenge() {
  return {Verdict::kAccepted, "", pattern(32, 5), pattern(32, 6)};
}

inline Welcome welcome() {
  return {Verdict::kRefused, "no room", pattern(20, 4), 99, 2};
}

inline Confirm confirm() {
  return {"abcdef", pattern(9, 5), "no room"};
}

} // namespace dlslime::testing
