// A peer that sends anything at all: nothing may crash, touch foreign memory,
// or end operations with a different peer.
#include <gtest/gtest.h>

#include <random>

#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/scripted_connection.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

constexpr Outbound::Limits kLimits{1000, 50000};

// Rank 0 of three groups of four. Rank 1, the peer behind `bad`, sends nonsense
// and is connected in one group; rank 2 behaves, in the two further groups.
class ProtocolFuzz : public ::testing::TestWithParam<unsigned> {
 protected:
  ProtocolFuzz() {
    good = connect(goodWire);
    group = endpoint.join(0, 4, 1, "shared");
    other = endpoint.join(0, 4, 1, "other");
    connectBad();
    group->links().resolve(2);
    other->links().resolve(2);
    group->linkReady(2, good, 22);
    other->linkReady(2, good, 23);
    protectedReceive = GuardedOperation::receive(2, 0, 500);
    protectedSend = GuardedOperation::send(2, 0, pattern(5000));
    otherReceive = GuardedOperation::receive(2, 1, 500);
    endpoint.receive(*group, protectedReceive);
    endpoint.send(*group, protectedSend);
    endpoint.receive(*other, otherReceive);
  }
  std::shared_ptr<PeerChannel> connect(ScriptedConnection*& wire) {
    auto made = std::make_unique<ScriptedConnection>();
    wire = made.get();
    return endpoint.connect(std::move(made));
  }
  // Makes a new channel instead of a channel ended by nonsense: in a group of
  // its own, since a lost rank stays lost.
  void connectBad() {
    if (badGroup) {
      badGroup->close(Status(ErrorCode::kCancelled, "over"));
      endpoint.settle();
    }
    bad = connect(badWire);
    badWire->canPull = random() % 2 == 0;
    badWire->setPushing(random() % 3 != 0);
    badGroup = endpoint.join(0, 4, 1, "bad");
    badGroup->links().resolve(1);
    badGroup->linkReady(1, bad, 5);
    group->link(1).channel = nullptr;
    sequence = 0;
  }
  template <typename T>
  T any(std::initializer_list<T> values) {
    return values.begin()[random() % values.size()];
  }
  uint64_t someId() {
    std::vector<uint64_t> known{
        0, 1, ~0ULL, random(), (1ULL << 32), (1ULL << 32) | 1, (2ULL << 32)};
    for (const auto& header : badWire->sent) {
      known.push_back(header.id);
      known.push_back(header.offset); // kStreamRequest's pull
    }
    for (const auto& pull : badWire->pulls) {
      known.push_back(pull.id);
    }
    for (const auto& offer : badWire->offered) {
      known.push_back(offer.id);
    }
    for (const auto& header : goodWire->sent) {
      known.push_back(header.id); // of a different peer
    }
    return known[random() % known.size()];
  }
  MessageHeader someHeader() {
    MessageHeader header;
    header.type = static_cast<MessageType>(
        random() % 400 == 0
            ? random() % 256
            : 1 + random() % static_cast<int>(kLastMessageType));
    header.status = static_cast<FinishStatus>(random() % 8);
    header.group = any<uint32_t>(
        {badGroup->id(),
         badGroup->id(),
         badGroup->id(),
         group->id(),
         other->id(),
         0,
         999,
         ~0U});
    header.source = any<uint32_t>({1, 1, 1, 1, 0, 2, 3, 4, 1000, ~0U});
    header.tag = any<uint32_t>({0, 1, 2, 3, 0x7fffffff, ~0U});
    header.length =
        any<uint64_t>({0, 1, 500, 1000, 5000, 100000, 1ULL << 40, ~0ULL});
    header.id = someId();
    header.offset =
        any<uint64_t>({0, 1, 500, 1000, 1ULL << 63, ~0ULL, someId()});
    header.address = random();
    header.slot = static_cast<uint16_t>(random());
    header.key = static_cast<uint32_t>(random());
    return header;
  }
  void inject() {
    MessageHeader header = someHeader();
    const size_t size = any<size_t>({0, 0, 1, 500, 501, 1000, 5000, 64000});
    // An allocation of the exact size shows reads beyond the end.
    const Bytes payload(size, std::byte{0x77});
    header.payloadSize = static_cast<uint32_t>(size);
    header.sequence = random() % 50 == 0 ? random() % 100 : ++sequence;
    bad->events().onMessage(header, payload);
  }
  void post() {
    const auto tag = static_cast<uint32_t>(random() % 4);
    const size_t size = any<size_t>({0, 1, 500, 1000, 1001, 5000});
    if (random() % 2 == 0) {
      posted.push_back(GuardedOperation::send(1, tag, pattern(size)));
      badGroup->post(posted.back());
    } else {
      const int from = random() % 3 == 0 ? Operation::kAnySource : 1;
      posted.push_back(GuardedOperation::receive(from, tag, size));
      badGroup->post(posted.back());
    }
  }
  void endSomePull() {
    if (badWire->pulls.empty()) {
      return;
    }
    const auto at = random() % badWire->pulls.size();
    const auto pull = badWire->pulls[at];
    badWire->pulls.erase(badWire->pulls.begin() + static_cast<long>(at));
    if (pull.destination.size != 0) { // must be alive
      std::memset(pull.destination.data, 0x55, pull.destination.size);
    }
    bad->events().onPulled(
        pull.id,
        pull.abandoned || random() % 4 == 0
            ? Status(ErrorCode::kTransportFailed, "broken")
            : Status());
  }
  // Writes into offered memory, or claims to have written.
  void land() {
    uint64_t id = someId();
    size_t length = any<size_t>({0, 1, 500, 5000, ~size_t{0}});
    if (!badWire->offered.empty() && random() % 4 != 0) {
      const auto& offer = badWire->offered[random() % badWire->offered.size()];
      id = offer.id;
      length = random() % 8 == 0 ? length : offer.view.size;
      std::memset(offer.view.data, 0x66, offer.view.size); // must be alive
    }
    if (random() % 50 != 0) {
      ++sequence;
    }
    bad->events().onLanded(id, static_cast<uint16_t>(sequence), length);
  }
  void endSomePush() {
    if (!badWire->pushes.empty()) {
      const auto push = badWire->pushes.back();
      badWire->pushes.pop_back();
      // The memory must be alive.
      const volatile auto first = *push.source.data;
      static_cast<void>(first);
      bad->events().onPushed(
          push.id,
          random() % 4 == 0 ? Status(ErrorCode::kTransportFailed, "broken")
                            : Status());
    }
  }
  void step() {
    switch (random() % 10) {
      case 8:
        land();
        break;
      case 9:
        endSomePush();
        break;
      case 0:
        post();
        break;
      case 1:
        endSomePull();
        break;
      case 2:
        badWire->full = random() % 3 == 0;
        bad->poll();
        break;
      case 3:
        if (!posted.empty()) {
          endpoint.cancel(
              *badGroup,
              posted[random() % posted.size()],
              Status(ErrorCode::kTimeout, "taken back"));
        }
        break;
      default:
        inject();
    }
    endpoint.settle();
    if (badWire->sent.size() > 200) {
      badWire->sent.erase(badWire->sent.begin(), badWire->sent.begin() + 150);
    }
  }
  void replaceIfFailed() {
    if (bad->state() == PeerChannel::State::kOpen && posted.size() < 300) {
      return;
    }
    bad->fail(Status(ErrorCode::kPeerFailed, "over"));
    EXPECT_TRUE(badWire->offered.empty());
    while (!badWire->pulls.empty()) {
      endSomePull();
    }
    endpoint.settle();
    EXPECT_TRUE(bad->idle());
    connectBad();
    for (const auto& operation : posted) {
      ASSERT_EQ(operation->ends(), 1) << operation->describe();
      ASSERT_EQ(operation->releases(), 1) << operation->describe();
    }
    posted.clear();
  }

  const LogCapture quiet;
  std::mt19937_64 random{GetParam()};
  Endpoint endpoint{kLimits};
  ScriptedConnection* goodWire = nullptr;
  ScriptedConnection* badWire = nullptr;
  std::shared_ptr<PeerChannel> good, bad;
  std::shared_ptr<Group> group, other, badGroup;
  GuardedPtr protectedReceive, protectedSend, otherReceive;
  std::vector<GuardedPtr> posted;
  uint64_t sequence = 0;
};

TEST_P(ProtocolFuzz, NonsenseHarmsNoOtherPeer) {
  for (int i = 0; i < 60000 && !HasFatalFailure(); ++i) {
    step();
    replaceIfFailed();
  }
  EXPECT_EQ(good->state(), PeerChannel::State::kOpen);
  for (const auto& operation :
       {protectedReceive, protectedSend, otherReceive}) {
    EXPECT_FALSE(operation->done())
        << operation->describe() << ": " << operation->status().message();
  }
  EXPECT_EQ(group->link(2).state, Group::LinkState::kReady);
  EXPECT_EQ(group->link(2).channel, good);
  EXPECT_EQ(other->link(2).channel, good);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ProtocolFuzz, ::testing::Range(1U, 7U));

} // namespace
} // namespace dlslime::testing
