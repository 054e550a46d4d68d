// Records with impossible fields, one rule at a time.
#include <gtest/gtest.h>
#include <unistd.h>

#include "fakes/peers/records.h"

namespace dlslime::testing {
namespace {

TEST(WireRecordRules, AddressWithAShortTokenOrInstanceIsRefused) {
  auto record = address();
  record.token.pop_back();
  EXPECT_THROW(decodeAddress(encode(record)), Error);
  record = address();
  record.identity.instance.push_back({});
  EXPECT_THROW(decodeAddress(encode(record)), Error);
  record = address();
  record.socketName = std::string(108, 'x');
  EXPECT_THROW(decodeAddress(encode(record)), Error);
}

TEST(WireRecordRules, AddressRecordOfAMillionAddressesIsRefusedCheaply) {
  auto record = address();
  record.addresses.assign(1000000, "");
  EXPECT_THROW(decodeAddress(encode(record)), Error);
}

std::optional<FailureNote> noteIn(const std::string& text) {
  return failureNote(
      {reinterpret_cast<const std::byte*>(text.data()), text.size()});
}
std::optional<std::string> reasonIn(const std::string& text) {
  const auto note = noteIn(text);
  return note ? std::optional(note->reason) : std::nullopt;
}

TEST(WireRecordRules, FailureNoteIsKnownByItsMark) {
  EXPECT_EQ(
      reasonIn("DLSLIME-FAILED:ImportError: no extension"),
      "ImportError: no extension");
  EXPECT_EQ(reasonIn("DLSLIME-FAILED:"), "");
  for (const auto* other : {"", "DLSLIME-FAILED", " DLSLIME-FAILED:", "x"}) {
    EXPECT_EQ(reasonIn(other), std::nullopt) << other;
  }
  EXPECT_FALSE(failureNote(encode(address())));
}

TEST(WireRecordRules, FailureNoteTellsItsTimeOrNone) {
  const auto note = noteIn("DLSLIME-FAILED:1796030007:ValueError: no");
  ASSERT_TRUE(note);
  EXPECT_EQ(note->seconds, 1796030007);
  EXPECT_EQ(note->reason, "ValueError: no");
  for (const auto* text : {"12", "99999999999999999999:x", "x:1", ""}) {
    const auto other = noteIn(std::string("DLSLIME-FAILED:") + text);
    EXPECT_EQ(other->seconds, 0) << text;
    EXPECT_EQ(other->reason, text);
  }
}

TEST(WireRecordRules, ReasonInAFailureNoteIsFitForTexts) {
  EXPECT_EQ(reasonIn("DLSLIME-FAILED:\x1b[2J\nx\xff"), "\\x1b[2J\\x0ax\\xff");
  EXPECT_EQ(
      reasonIn("DLSLIME-FAILED:" + std::string(1000000, 'x')),
      std::string(1024, 'x') + "...");
}

TEST(WireRecordRules, HostIsTheSameWhereBootAndNetworkAre) {
  const auto one = identity();
  auto other = identity();
  EXPECT_TRUE(sameHost(one, other));
  other.networkNamespace += 1;
  EXPECT_FALSE(sameHost(one, other));
  EXPECT_FALSE(sameHost(makeIdentity("a"), makeIdentity("b")));
  EXPECT_TRUE(sameHost(makeIdentity("a"), makeIdentity("a")));
}

TEST(WireRecordRules, ProcessesOfDifferentUsersDoNotMeetLocally) {
  const auto one = identity();
  auto other = identity();
  EXPECT_TRUE(meetLocally(one, other));
  other.hostUid += 1;
  EXPECT_TRUE(sameHost(one, other));
  EXPECT_FALSE(meetLocally(one, other));
}

// Of one host, in separate network namespaces.
std::pair<PeerIdentity, PeerIdentity> apart() {
  auto pair = std::pair(identity(), identity());
  pair.second.networkNamespace += 1;
  return pair;
}

TEST(WireRecordRules, ContainersMeetInACommonDirectory) {
  const auto [one, other] = apart();
  EXPECT_FALSE(sameHost(one, other));
  EXPECT_TRUE(meetLocally(one, other));
}

TEST(WireRecordRules, ContainersDoNotMeetWithoutACommonDirectory) {
  auto [one, other] = apart();
  other.directory = "65024:78";
  EXPECT_FALSE(meetLocally(one, other));
  other.directory = "";
  EXPECT_FALSE(meetLocally(one, other));
  EXPECT_FALSE(meetLocally(other, one));
  one.directory = "";
  EXPECT_FALSE(meetLocally(one, other)) << "two without are not of one";
}

TEST(WireRecordRules, HostsWithEqualIdsOfDirectoriesDoNotMeet) {
  auto [one, other] = apart();
  other.bootId = "boot-8";
  EXPECT_FALSE(meetLocally(one, other));
  other.networkNamespace = one.networkNamespace;
  EXPECT_FALSE(meetLocally(one, other));
}

TEST(WireRecordRules, ContainersOfDifferentUsersOfTheHostDoNotMeet) {
  auto [one, other] = apart();
  other.hostUid += 1;
  EXPECT_FALSE(meetLocally(one, other));
}

// User namespaces name a user of the host as they like.
TEST(WireRecordRules, UserOfTheHostCountsAndNotTheContainers) {
  auto one = identity(), other = identity();
  other.uid += 1;
  EXPECT_TRUE(meetLocally(one, other));
  std::swap(one.hostUid, one.uid);
  other = identity();
  other.uid = one.uid;
  EXPECT_FALSE(meetLocally(one, other));
}

TEST(WireRecordRules, DirectoryDoesNotPartProcessesOfOneNetwork) {
  auto one = identity(), other = identity();
  other.directory = "65024:78";
  EXPECT_TRUE(meetLocally(one, other));
  other.directory = "";
  EXPECT_TRUE(meetLocally(one, other));
}

TEST(WireRecordRules, GreetingThatCannotBeIsRefused) {
  auto bad = greeting();
  bad.policy = static_cast<RoutePolicy>(17);
  EXPECT_THROW(decodeGreeting(encode(bad)), Error);
  bad = greeting();
  bad.secret = static_cast<SecretKind>(3);
  EXPECT_THROW(decodeGreeting(encode(bad)), Error);
  bad = greeting();
  bad.nonce.pop_back();
  EXPECT_THROW(decodeGreeting(encode(bad)), Error);
  bad = greeting();
  bad.self.clear();
  EXPECT_THROW(decodeGreeting(encode(bad)), Error);
}

TEST(WireRecordRules, ChallengeThatCannotBeIsRefused) {
  auto bad = challenge();
  bad.nonce.pop_back();
  EXPECT_THROW(decodeChallenge(encode(bad)), Error);
  for (const auto verdict : {Verdict::kRefused, Verdict::kCrossed}) {
    bad = challenge();
    bad.verdict = verdict;
    EXPECT_THROW(decodeChallenge(encode(bad)), Error);
  }
}

TEST(WireRecordRules, MoreDescriptorsThanThereMayBeAreRefused) {
  auto bad = hello();
  bad.descriptors = kMostDescriptors + 1;
  EXPECT_THROW(decodeHello(encode(bad)), Error);
  auto answer = welcome();
  answer.descriptors = kMostDescriptors + 1;
  EXPECT_THROW(decodeWelcome(encode(answer)), Error);
}

// Text of peers ends up in logs and exceptions.
TEST(WireRecordRules, TextOfPeersIsMadePrintable) {
  const std::string evil = "\x1b[2Jgone\n\xff";
  const std::string shown = "\\x1b[2Jgone\\x0a\\xff";
  auto sent = hello();
  sent.self.host = evil;
  sent.rejected = {{evil, evil}};
  const auto back = decodeHello(encode(sent));
  EXPECT_EQ(back.self.host, shown);
  EXPECT_EQ(back.rejected.at(0).first, shown);
  EXPECT_EQ(back.rejected.at(0).second, shown);
  auto answer = welcome();
  answer.text = evil;
  EXPECT_EQ(decodeWelcome(encode(answer)).text, shown);
  auto asked = challenge();
  asked.text = evil;
  EXPECT_EQ(decodeChallenge(encode(asked)).text, shown);
  auto last = confirm();
  last.problem = evil;
  EXPECT_EQ(decodeConfirm(encode(last)).problem, shown);
}

TEST(WireRecordRules, WelcomeWithAnUnknownVerdictIsRefused) {
  auto bad = welcome();
  for (const int verdict : {0, 7, 255}) {
    bad.verdict = static_cast<Verdict>(verdict);
    EXPECT_THROW(decodeWelcome(encode(bad)), Error) << verdict;
  }
}

TEST(WireRecordRules, HelloWithAMillionRejectedRoutesIsRefusedCheaply) {
  auto bad = hello();
  bad.rejected.assign(1000000, {"", ""});
  EXPECT_THROW(decodeHello(encode(bad)), Error);
}

TEST(WireRecordRules, IdentityIsOfThisProcessAndNewEachTime) {
  const auto first = makeIdentity();
  const auto second = makeIdentity();
  EXPECT_EQ(first.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(first.uid, static_cast<uint32_t>(getuid()));
  EXPECT_FALSE(first.bootId.empty());
  EXPECT_NE(first.networkNamespace, 0U);
  EXPECT_NE(first.instance, second.instance);
  EXPECT_EQ(first.bootId, second.bootId);
  EXPECT_EQ(first.hostUid, second.hostUid);
  EXPECT_EQ(first.directory, "");
  EXPECT_EQ(makeIdentity("", "1:2").directory, "1:2");
}

} // namespace
} // namespace dlslime::testing
