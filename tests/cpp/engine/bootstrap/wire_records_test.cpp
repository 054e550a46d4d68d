// Records survive encoding and decoding; malformed records are refused.
#include "engine/bootstrap/wire_records.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "fakes/peers/records.h"

namespace dlslime::testing {
namespace {

void expectEqual(const PeerIdentity& left, const PeerIdentity& right) {
  EXPECT_EQ(left.instance, right.instance);
  EXPECT_EQ(left.bootId, right.bootId);
  EXPECT_EQ(left.host, right.host);
  EXPECT_EQ(left.networkNamespace, right.networkNamespace);
  EXPECT_EQ(left.pid, right.pid);
  EXPECT_EQ(left.uid, right.uid);
  EXPECT_EQ(left.hostUid, right.hostUid);
  EXPECT_EQ(left.directory, right.directory);
}

TEST(WireRecordsTest, AddressComesBack) {
  const auto record = decodeAddress(encode(address()));
  expectEqual(record.identity, identity());
  EXPECT_EQ(record.token, address().token);
  EXPECT_EQ(record.socketName, "dlslime-0123");
  EXPECT_EQ(record.addresses, address().addresses);
  EXPECT_EQ(record.group, 77U);
  EXPECT_EQ(record.epoch, 3U);
  EXPECT_EQ(record.joined, 1234567890123);
}

TEST(WireRecordsTest, HelloComesBack) {
  const auto back = decodeHello(encode(hello()));
  expectEqual(back.self, identity());
  EXPECT_EQ(back.socketName, address().socketName);
  EXPECT_EQ(back.addresses, address().addresses);
  EXPECT_TRUE(back.probe);
  EXPECT_EQ(back.replaces, 3U);
  EXPECT_EQ(back.lastSeen, 1ULL << 40);
  EXPECT_EQ(back.nonce, "abcdef");
  EXPECT_EQ(back.descriptors, 3);
  EXPECT_EQ(back.group, 12U);
  EXPECT_EQ(back.route, "shm");
  EXPECT_EQ(back.blob, hello().blob);
  EXPECT_EQ(back.rejected, hello().rejected);
}

TEST(WireRecordsTest, GreetingComesBack) {
  const auto back = decodeGreeting(encode(greeting()));
  EXPECT_EQ(back.target, greeting().target);
  EXPECT_EQ(back.self, greeting().self);
  EXPECT_EQ(back.policy, RoutePolicy::kGloo);
  EXPECT_EQ(back.secret, SecretKind::kPair);
  EXPECT_EQ(back.nonce, greeting().nonce);
}

TEST(WireRecordsTest, ChallengeComesBack) {
  const auto back = decodeChallenge(encode(challenge()));
  EXPECT_EQ(back.verdict, Verdict::kAccepted);
  EXPECT_EQ(back.nonce, challenge().nonce);
  EXPECT_EQ(back.proof, challenge().proof);
  const auto later =
      decodeChallenge(encode(Challenge{Verdict::kLater, "no room", {}, {}}));
  EXPECT_EQ(later.verdict, Verdict::kLater);
  EXPECT_EQ(later.text, "no room");
}

TEST(WireRecordsTest, WelcomeOfEveryVerdictComesBack) {
  for (const auto verdict :
       {Verdict::kAccepted,
        Verdict::kRefused,
        Verdict::kCrossed,
        Verdict::kStranger,
        Verdict::kLater,
        Verdict::kNotJoined}) {
    auto sent = welcome();
    sent.verdict = verdict;
    const auto back = decodeWelcome(encode(sent));
    EXPECT_EQ(back.verdict, verdict);
    EXPECT_EQ(back.text, "no room");
    EXPECT_EQ(back.blob, sent.blob);
    EXPECT_EQ(back.lastSeen, 99U);
    EXPECT_EQ(back.descriptors, 2);
  }
}

TEST(WireRecordsTest, ConfirmComesBack) {
  const auto back = decodeConfirm(encode(confirm()));
  EXPECT_EQ(back.nonce, "abcdef");
  EXPECT_EQ(back.blob, confirm().blob);
  EXPECT_EQ(back.problem, confirm().problem);
}

struct Kind {
  const char* name;
  Bytes good;
  std::function<void(ByteSpan)> decode;
};

// Else gtest would print a failed parameter's bytes.
void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

class WireRecordKinds : public ::testing::TestWithParam<Kind> {
 protected:
  // Decodes, and requires that a refusal blames the peer.
  static bool refused(ByteSpan bytes, std::string* text = nullptr) {
    try {
      GetParam().decode(bytes);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), ErrorCode::kPeerFailed);
      if (text != nullptr) {
        *text = error.what();
      }
      return true;
    }
  }
};

TEST_P(WireRecordKinds, GoodOneIsTaken) {
  EXPECT_FALSE(refused(GetParam().good));
}

TEST_P(WireRecordKinds, EveryTruncationIsRefused) {
  for (size_t size = 0; size < GetParam().good.size(); ++size) {
    // An allocation of the exact size shows reads beyond the end.
    const Bytes cut(
        GetParam().good.begin(),
        GetParam().good.begin() + static_cast<long>(size));
    EXPECT_TRUE(refused(cut)) << size;
  }
}

TEST_P(WireRecordKinds, TrailingBytesAreRefused) {
  Bytes longer = GetParam().good;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refused(longer));
  longer.resize(1 << 20);
  EXPECT_TRUE(refused(longer));
}

TEST_P(WireRecordKinds, WrongMagicIsRefused) {
  for (size_t i = 0; i < 8; ++i) {
    Bytes bad = GetParam().good;
    bad[i] ^= std::byte{0x40};
    std::string text;
    EXPECT_TRUE(refused(bad, &text));
    EXPECT_NE(text.find("not of dlslime"), std::string::npos) << text;
  }
}

TEST_P(WireRecordKinds, OtherVersionIsRefusedNamingBoth) {
  Bytes bad = GetParam().good;
  bad[8] = std::byte{kProtocolVersion + 1};
  std::string text;
  EXPECT_TRUE(refused(bad, &text));
  EXPECT_NE(
      text.find("version " + std::to_string(kProtocolVersion + 1)),
      std::string::npos)
      << text;
  EXPECT_NE(
      text.find("has " + std::to_string(kProtocolVersion)), std::string::npos)
      << text;
}

TEST_P(WireRecordKinds, LengthsBeyondTheEndAreRefused) {
  for (size_t at = 10; at + 4 <= GetParam().good.size(); ++at) {
    Bytes bad = GetParam().good;
    for (size_t i = 0; i < 4; ++i) {
      bad[at + i] = std::byte{0xff};
    }
    refused(bad); // may be plain data; must not crash
  }
}

TEST_P(WireRecordKinds, FlippedBitsNeverCrash) {
  for (size_t at = 0; at < GetParam().good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes bad = GetParam().good;
      bad[at] ^= static_cast<std::byte>(1 << bit);
      refused(bad);
    }
  }
}

TEST_P(WireRecordKinds, RandomBytesNeverCrash) {
  std::mt19937 random(17);
  const auto& good = GetParam().good;
  for (int round = 0; round < 30000; ++round) {
    Bytes bytes(random() % 300);
    for (auto& byte : bytes) {
      byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    }
    if (round % 4 != 0) { // a good preamble leads further
      std::copy_n(
          good.begin(), std::min<size_t>(bytes.size(), 10), bytes.begin());
    }
    refused(bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    WireRecordKinds,
    ::testing::Values(
        Kind{
            "Address",
            encode(address()),
            [](ByteSpan bytes) { decodeAddress(bytes); }},
        Kind{
            "Greeting",
            encode(greeting()),
            [](ByteSpan bytes) { decodeGreeting(bytes); }},
        Kind{
            "Challenge",
            encode(challenge()),
            [](ByteSpan bytes) { decodeChallenge(bytes); }},
        Kind{
            "Hello",
            encode(hello()),
            [](ByteSpan bytes) { decodeHello(bytes); }},
        Kind{
            "Welcome",
            encode(welcome()),
            [](ByteSpan bytes) { decodeWelcome(bytes); }},
        Kind{
            "Confirm",
            encode(confirm()),
            [](ByteSpan bytes) { decodeConfirm(bytes); }}),
    [](const auto& instance) { return std::string(instance.param.name); });

} // namespace
} // namespace dlslime::testing
