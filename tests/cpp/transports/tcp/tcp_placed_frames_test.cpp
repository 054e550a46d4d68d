// Frames that the kernel reads from, and writes to, registered memory: a fault
// ends the frame, and nothing else.
#include <gtest/gtest.h>

#include <algorithm>

#include "fakes/harmed_pages.h"
#include "fakes/peers/stream_sockets.h"
#include "fakes/world.h"
#include "transports/tcp/frame_stream.h"

namespace dlslime::tcp {
namespace {

using namespace ::dlslime::testing;

constexpr int kSmallBuffer = 4096;
constexpr size_t kSize = 100'000;
constexpr size_t kPrefix = 48;

// Two streams, and the frames that have come.
class PlacedFramesTest : public ::testing::TestWithParam<bool> {
 protected:
  PlacedFramesTest()
      : PlacedFramesTest(
            GetParam() ? tcpEnds(kSmallBuffer) : unixEnds(kSmallBuffer)) {}
  explicit PlacedFramesTest(SocketEnds ends)
      : sender({std::move(ends[0]), {}}), receiver({std::move(ends[1]), {}}) {}

  // Takes all frames that have come, large frames into `placement`.
  void take() {
    for (bool more = true; more;) {
      while (const auto frame = receiver.next()) {
        sequences.push_back(frame->header.sequence);
        sizes.push_back(frame->header.payloadSize);
        placed.push_back(frame->placed);
        faults.push_back(frame->fault);
        payload.assign(frame->payload.begin(), frame->payload.end());
      }
      const auto begun = receiver.begun();
      asked += begun ? 1 : 0;
      more = begun ? receiver.fillInto(placement) : receiver.fill();
    }
  }
  // Takes frames until `count` have come.
  void takeUntil(size_t count) {
    EXPECT_TRUE(eventually([&] {
      sender.flush();
      take();
      return sequences.size() >= count || !receiver.broken().ok();
    }));
    EXPECT_EQ(sequences.size(), count);
  }
  // Cuts the bytes into `count` places.
  static std::vector<ByteSpan> cut(ByteSpan bytes, size_t count) {
    std::vector<ByteSpan> places;
    for (size_t left = count; left > 0; --left) {
      places.push_back(bytes.first(bytes.size() / left));
      bytes = bytes.subspan(places.back().size());
    }
    return places;
  }
  void placeInto(std::byte* to, size_t size, size_t count, size_t from = 0) {
    placement = {from, {}};
    for (const auto& part : cut(ByteSpan(to, size), count)) {
      placement.places.push_back(
          {const_cast<std::byte*>(part.data()), part.size()});
    }
  }
  void putSmall(uint64_t sequence) {
    EXPECT_TRUE(eventually([&] {
      take();
      return sender.put(headerOf(sequence), pattern(10), false);
    }));
  }

  FrameStream sender, receiver;
  Placement placement;
  size_t asked = 0; // times that placement was used
  std::vector<uint64_t> sequences;
  std::vector<size_t> sizes;
  std::vector<bool> placed;
  std::vector<Fault> faults;
  Bytes payload; // of the last frame
};

TEST_P(PlacedFramesTest, GatheredPlacesAreOneFrame) {
  const auto bytes = pattern(kSize);
  EXPECT_EQ(sender.putGathered(headerOf(7), cut(bytes, 5)), Fault::kNone);
  putSmall(8);
  takeUntil(2);
  EXPECT_EQ(sequences, (std::vector<uint64_t>{7, 8}));
  EXPECT_EQ(sizes, (std::vector<size_t>{kSize, 10}));
}

TEST_P(PlacedFramesTest, MostPlacesAreGathered) {
  const auto bytes = pattern(kSize);
  EXPECT_EQ(
      sender.putGathered(headerOf(7), cut(bytes, kMostPlaces)), Fault::kNone);
  takeUntil(1);
  EXPECT_TRUE(sameBytes(payload, bytes));
}

TEST_P(PlacedFramesTest, SourceThatFaultsIsNoFrame) {
  for (const size_t pages : {1, 2, 20}) {
    const Pages memory(pages);
    memory.cutLast();
    const auto places = cut(ByteSpan(memory.data(), memory.size()), 3);
    EXPECT_EQ(sender.putGathered(headerOf(1), places), Fault::kGone) << pages;
    putSmall(pages);
    takeUntil(1);
    EXPECT_EQ(sequences, std::vector<uint64_t>{pages});
    sequences.clear();
  }
  EXPECT_TRUE(receiver.broken().ok());
  EXPECT_TRUE(sender.broken().ok());
}

TEST_P(PlacedFramesTest, PayloadGoesToItsPlaces) {
  const auto bytes = pattern(kSize);
  Bytes memory(kSize);
  for (const bool gathered : {true, false}) {
    std::fill(memory.begin(), memory.end(), std::byte{0});
    placeInto(memory.data(), memory.size(), 7);
    if (gathered) {
      EXPECT_EQ(sender.putGathered(headerOf(1), cut(bytes, 1)), Fault::kNone);
    } else {
      EXPECT_TRUE(sender.put(headerOf(1), bytes, false));
    }
    putSmall(2);
    takeUntil(2);
    EXPECT_EQ(placed, (std::vector<bool>{true, false}));
    EXPECT_EQ(sizes, (std::vector<size_t>{kSize, 10}));
    EXPECT_EQ(faults, std::vector<Fault>(2, Fault::kNone));
    EXPECT_TRUE(sameBytes(memory, bytes));
    sequences.clear(), placed.clear(), sizes.clear(), faults.clear();
  }
  EXPECT_GT(asked, 4U); // for each part anew
}

TEST_P(PlacedFramesTest, WhatIsBeforeThePlacesIsGivenWithThem) {
  const auto bytes = pattern(kSize);
  Bytes memory(kSize - kPrefix);
  placeInto(memory.data(), memory.size(), 2, kPrefix);
  EXPECT_EQ(sender.putGathered(headerOf(1), cut(bytes, 2)), Fault::kNone);
  takeUntil(1);
  EXPECT_TRUE(placed.at(0));
  auto both = payload;
  EXPECT_EQ(both.size(), kPrefix);
  both.insert(both.end(), memory.begin(), memory.end());
  EXPECT_TRUE(sameBytes(both, bytes));
}

TEST_P(PlacedFramesTest, PlacesThatDoNotFitAreNotUsed) {
  const auto bytes = pattern(kSize);
  Bytes memory(kSize + 1);
  placeInto(memory.data(), kSize + 1, 3);
  EXPECT_EQ(sender.putGathered(headerOf(1), cut(bytes, 2)), Fault::kNone);
  takeUntil(1);
  EXPECT_FALSE(placed.at(0));
  EXPECT_TRUE(sameBytes(payload, bytes));
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0}), kSize + 1);
}

TEST_P(PlacedFramesTest, PlacesThatGoAreNotWrittenAnyMore) {
  const auto bytes = pattern(kSize);
  Bytes memory(kSize);
  placeInto(memory.data(), memory.size(), 1);
  EXPECT_EQ(sender.putGathered(headerOf(1), cut(bytes, 2)), Fault::kNone);
  EXPECT_TRUE(eventually([&] {
    sender.flush();
    if (const auto begun = receiver.begun()) {
      receiver.fillInto(placement);
      return true;
    }
    receiver.fill();
    return false;
  }));
  placement = {};
  const auto before = memory;
  ASSERT_TRUE(receiver.begun());
  putSmall(2);
  takeUntil(2);
  EXPECT_EQ(faults, (std::vector<Fault>{Fault::kGone, Fault::kNone}));
  EXPECT_TRUE(sameBytes(memory, before));
}

TEST_P(PlacedFramesTest, DestinationThatFaultsFailsItsFrameAlone) {
  struct Harm {
    void (*harm)(const Pages&);
    Fault fault;
  };
  const Harm all[] = {
      {[](const Pages& pages) { pages.protectLast(PROT_READ); },
       Fault::kReadOnly},
      {[](const Pages& pages) { pages.protectLast(PROT_NONE); }, Fault::kGone},
      {[](const Pages& pages) { pages.cutLast(); }, Fault::kGone}};
  for (const auto& one : all) {
    for (const bool last : {true, false}) { // else first
      const Pages pages(20);
      one.harm(pages);
      const auto bytes = pattern(pages.size());
      placeInto(pages.data(), pages.size(), last ? 3 : 20);
      if (!last) {
        std::swap(placement.places.front(), placement.places.back());
      }
      EXPECT_EQ(sender.putGathered(headerOf(1), cut(bytes, 1)), Fault::kNone);
      putSmall(2);
      takeUntil(2);
      EXPECT_EQ(faults, (std::vector<Fault>{one.fault, Fault::kNone}));
      sequences.clear(), faults.clear();
    }
  }
  EXPECT_TRUE(receiver.broken().ok());
}

TEST_P(PlacedFramesTest, FrameThatIsGivenUpAmidItsPlacesIsNone) {
  const Pages source(20);
  source.cutLast();
  Bytes memory(source.size());
  placeInto(memory.data(), memory.size(), 4);
  EXPECT_EQ(
      sender.putGathered(
          headerOf(1), cut(ByteSpan(source.data(), source.size()), 1)),
      Fault::kGone);
  putSmall(2);
  takeUntil(1);
  EXPECT_EQ(sequences, std::vector<uint64_t>{2});
  EXPECT_GT(asked, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Over,
    PlacedFramesTest,
    ::testing::Bool(),
    [](const auto& instance) {
      return std::string(instance.param ? "Tcp" : "Unix");
    });

} // namespace
} // namespace dlslime::tcp
