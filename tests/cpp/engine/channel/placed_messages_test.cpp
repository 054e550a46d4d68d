// Payloads that a connection may write straight to registered memory: the
// channel's placement, and the effect of their end.
#include <gtest/gtest.h>

#include "fakes/peers/scripted_channel.h"

namespace dlslime::testing {
namespace {

constexpr size_t kSize = 100'000;

class PlacedMessages : public ScriptedChannel {
 protected:
  PlacedMessages() : region(endpoint.regions.add(view(), "memory", nullptr)) {
    lend(region);
  }
  MemoryView view() {
    MemoryView view;
    view.data = memory.data();
    view.size = memory.size();
    return view;
  }
  // Returns a kPut of the pieces, the last message of a write.
  MessageHeader put(const std::vector<wire::FramePiece>& pieces) {
    auto header = message(MessageType::kPut, 0);
    header.sequence = sequence + 1;
    header.id = 5;
    header.offset = region->handle().id;
    header.length = pieces.size();
    header.slot = 1;
    size_t size = pieces.size() * sizeof(wire::FramePiece);
    for (const auto& piece : pieces) {
      size += piece.size;
    }
    header.payloadSize = static_cast<uint32_t>(size);
    const auto bytes = std::as_bytes(std::span(pieces));
    begin.assign(bytes.begin(), bytes.end());
    return header;
  }
  // Delivers an earlier part of a write.
  void part(uint64_t id, Fault fault) {
    auto header = put({{0, 20'000}});
    header.id = id;
    header.slot = 0;
    channel->events().onPlaced(header, fault);
    ++sequence;
  }
  void expectAnswer(FinishStatus status) {
    ASSERT_EQ(countSent(MessageType::kPutAck), 1U);
    EXPECT_EQ(connection->sent.back().id, 5U);
    EXPECT_EQ(connection->sent.back().status, status);
  }

  Bytes memory = Bytes(kSize);
  RegionPtr region;
  Bytes begin;
};

TEST_F(PlacedMessages, PutGoesWhereItsPiecesAre) {
  const auto header = put({{10, 20'000}, {50'000, 30'000}});
  const auto placement = channel->events().placementOf(header, begin);
  EXPECT_EQ(placement.from, 32U);
  ASSERT_EQ(placement.places.size(), 2U);
  EXPECT_EQ(placement.places[0].data(), memory.data() + 10);
  EXPECT_EQ(placement.places[1].data(), memory.data() + 50'000);
  EXPECT_EQ(placement.places[1].size(), 30'000U);
  channel->events().onPlaced(header, Fault::kNone);
  expectAnswer(FinishStatus::kOk);
}

TEST_F(PlacedMessages, FaultOfAPlaceIsAnswered) {
  channel->events().onPlaced(put({{0, 20'000}}), Fault::kReadOnly);
  expectAnswer(FinishStatus::kUnwritable);
}

TEST_F(PlacedMessages, FaultOfAnEarlierPartIsAnsweredAtTheEnd) {
  part(5, Fault::kReadOnly);
  channel->events().onPlaced(put({{0, 20'000}}), Fault::kNone);
  expectAnswer(FinishStatus::kUnwritable);
}

// A peer may begin failing writes without end.
TEST_F(PlacedMessages, WritesThatFailAreBoundedAndNoneIsCalledGood) {
  for (uint64_t id = 100; id < 100 + 65'536; ++id) {
    part(id, Fault::kReadOnly);
  }
  part(5, Fault::kReadOnly); // exceeds the limit by one
  channel->events().onPlaced(put({{0, 20'000}}), Fault::kNone);
  expectAnswer(FinishStatus::kUnwritable);
}

TEST_F(PlacedMessages, WritesThatFailedAreForgottenWithTheirRegion) {
  part(5, Fault::kReadOnly);
  auto forgotten = message(MessageType::kKeyRevoked, 0);
  forgotten.id = region->handle().id;
  deliver(forgotten);
  EXPECT_FALSE(region->lent());
  lend(region); // anew
  channel->events().onPlaced(put({{0, 20'000}}), Fault::kNone);
  expectAnswer(FinishStatus::kOk);
}

TEST_F(PlacedMessages, PutThatIsNotWhollyUnderstoodHasNoPlaces) {
  const auto none = [&](const MessageHeader& header, ByteSpan bytes) {
    return channel->events().placementOf(header, bytes).places.empty();
  };
  auto header = put({{0, 20'000}, {20'000, 20'000}});
  EXPECT_FALSE(none(header, begin));
  EXPECT_TRUE(none(header, ByteSpan(begin).first(31))) << "not all pieces";
  header.length = uint64_t{1} << 61;
  EXPECT_TRUE(none(header, begin)) << "more pieces than bytes";
  EXPECT_TRUE(none(put({{kSize - 1, 20'000}}), begin)) << "beyond the region";
  EXPECT_TRUE(none(put({{~uint64_t{0}, 20'000}}), begin));
  header = put({{0, 20'000}});
  header.payloadSize -= 1;
  EXPECT_TRUE(none(header, begin)) << "more than comes";
  header = put({{0, 20'000}});
  header.offset += 1;
  EXPECT_TRUE(none(header, begin)) << "of another region";
  header = put({{0, 20'000}});
  header.sequence += 1;
  EXPECT_TRUE(none(header, begin)) << "not its turn";
  EXPECT_TRUE(none(put(std::vector<wire::FramePiece>(257, {0, 100})), begin));
}

TEST_F(PlacedMessages, OnlyChunksAndPutsHavePlaces) {
  for (auto type = MessageType::kJoin; type <= kLastMessageType;
       type = static_cast<MessageType>(static_cast<int>(type) + 1)) {
    auto header = put({{0, 20'000}});
    header.type = type;
    EXPECT_EQ(
        channel->events().placementOf(header, begin).places.empty(),
        type != MessageType::kPut) // no read is under way
        << static_cast<int>(type);
  }
}

TEST_F(PlacedMessages, PutOfAnUnknownGroupHasNoPlacesAndIsRefused) {
  auto header = put({{0, 20'000}});
  header.group = 999;
  EXPECT_TRUE(channel->events().placementOf(header, begin).places.empty());
  channel->events().onPlaced(
      header, Fault::kNone); // known when the payload began
  expectAnswer(FinishStatus::kGroupGone);
}

TEST_F(PlacedMessages, PutOfAClosedGroupIsRefused) {
  const auto header = put({{0, 20'000}});
  EXPECT_FALSE(channel->events().placementOf(header, begin).places.empty());
  group->close(Status(ErrorCode::kCancelled, "over"));
  EXPECT_TRUE(channel->events().placementOf(header, begin).places.empty());
  channel->events().onPlaced(header, Fault::kGone);
  EXPECT_EQ(connection->sent.back().status, FinishStatus::kGroupGone);
}

TEST_F(PlacedMessages, PutsWhoseAnswersAreNotReadFailTheChannel) {
  connection->full = true;
  for (int i = 0; i < 300'000 && channel->alive(); ++i) {
    const auto header = put({{0, 20'000}});
    channel->events().onPlaced(header, Fault::kNone);
    ++sequence;
  }
  EXPECT_FALSE(channel->alive());
}

} // namespace
} // namespace dlslime::testing
