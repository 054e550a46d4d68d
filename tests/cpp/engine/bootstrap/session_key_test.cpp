// The proofs by which the ends of a handshake know each other.
#include "engine/bootstrap/session_key.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/random.h"
#include "engine/bootstrap/handshake_limits.h"
#include "engine/bootstrap/refusal_log.h"
#include "fakes/log_capture.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

using End = SessionKey::End;

Greeting greeting() {
  return {
      pattern(16, 1),
      pattern(16, 2),
      RoutePolicy::kAuto,
      SecretKind::kToken,
      pattern(32, 3)};
}

bool opens(const SessionKey& key, End from, uint8_t number, ByteSpan sealed) {
  try {
    key.open(from, number, sealed);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), ErrorCode::kPeerFailed);
    return false;
  }
}

TEST(SessionKey, BothEndsDeriveTheSame) {
  const auto secret = randomBytes(32);
  const SessionKey one(secret, greeting(), pattern(32, 4));
  const SessionKey other(secret, greeting(), pattern(32, 4));
  EXPECT_TRUE(one.provenBy(other.acceptorProof()));
  EXPECT_EQ(one.pairSecret(), other.pairSecret());
  const auto record = pattern(100);
  const auto sealed = one.seal(End::kInitiator, 0, record);
  const auto opened = other.open(End::kInitiator, 0, sealed);
  EXPECT_EQ(Bytes(opened.begin(), opened.end()), record);
}

TEST(SessionKey, NothingIsProvenByAnotherSecretOrHandshake) {
  const auto secret = pattern(32, 9);
  const SessionKey key(secret, greeting(), pattern(32, 4));
  auto otherNonce = greeting();
  otherNonce.nonce[0] ^= std::byte{1};
  auto otherTarget = greeting();
  otherTarget.target[0] ^= std::byte{1};
  for (const auto& other :
       {SessionKey(pattern(32, 8), greeting(), pattern(32, 4)),
        SessionKey(secret, greeting(), pattern(32, 5)),
        SessionKey(secret, otherNonce, pattern(32, 4)),
        SessionKey(secret, otherTarget, pattern(32, 4))}) {
    EXPECT_FALSE(key.provenBy(other.acceptorProof()));
    EXPECT_NE(key.pairSecret(), other.pairSecret());
    EXPECT_FALSE(opens(
        key, End::kAcceptor, 0, other.seal(End::kAcceptor, 0, pattern(9))));
  }
  EXPECT_FALSE(key.provenBy({}));
}

TEST(SessionKey, SealHoldsForOneEndOneNumberAndTheseBytes) {
  const SessionKey key(pattern(32, 9), greeting(), pattern(32, 4));
  const auto sealed = key.seal(End::kInitiator, 0, pattern(50));
  EXPECT_TRUE(opens(key, End::kInitiator, 0, sealed));
  EXPECT_FALSE(opens(key, End::kAcceptor, 0, sealed)) << "sent back to its end";
  EXPECT_FALSE(opens(key, End::kInitiator, 1, sealed));
  for (size_t i = 0; i < sealed.size(); ++i) {
    auto changed = sealed;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(opens(key, End::kInitiator, 0, changed)) << i;
  }
  EXPECT_FALSE(opens(key, End::kInitiator, 0, {}));
  EXPECT_FALSE(opens(key, End::kInitiator, 0, key.acceptorProof()));
}

// Half of the process's descriptors must stay for further uses.
TEST(HandshakeLimits, AreOfTheDescriptorsThatTheProcessMayHave) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t files : {64UL, 256UL, 1024UL, 4096UL, 1048576UL}) {
    rlimit limit{std::min(files, before.rlim_max), before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    const auto limits = HandshakeLimits::ofProcess();
    EXPECT_LE(limits.unproven + 3 * limits.proven, limit.rlim_cur / 2) << files;
    EXPECT_LE(limits.unproven, 128U);
    EXPECT_LE(limits.proven, 256U);
    EXPECT_LE(limits.provenOfOneSource, limits.proven / 2);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(RefusalLog, EachCauseOfEachSourceIsALineAndTheRestANumber) {
  LogCapture log;
  const auto start = Clock::now();
  {
    RefusalLog refusals;
    for (int i = 0; i < 1000; ++i) {
      const auto port = "10.0.0.1:" + std::to_string(i);
      refusals.note("10.0.0.1", port, "no seal", start);
      refusals.note("10.0.0.1", port, "no greeting", start);
      refusals.note("10.0.0.2", "10.0.0.2:1", "no seal", start);
    }
    EXPECT_EQ(log.count("was refused"), 3U) << log.all();
    refusals.tell(start + milliseconds(59000));
    EXPECT_EQ(log.count("further connections"), 0U);
    EXPECT_LE(refusals.next(), start + milliseconds(60000));
    refusals.tell(start + milliseconds(60000));
    EXPECT_EQ(log.count("of their own: 2997, the last from 10.0.0.2:1"), 1U)
        << log.all();
    EXPECT_EQ(refusals.next(), never());
    refusals.note("10.0.0.2", "10.0.0.2:1", "no seal", start);
  }
  EXPECT_EQ(log.count("of their own: 1,"), 1U) << log.all();
}

TEST(RefusalLog, SourcesWithoutEndAreFewLines) {
  LogCapture log;
  RefusalLog refusals;
  for (int i = 0; i < 100000; ++i) {
    const auto source = std::to_string(i);
    refusals.note("source " + source, source, "cause");
  }
  EXPECT_EQ(log.count("was refused"), 64U);
}

} // namespace
} // namespace dlslime::testing
