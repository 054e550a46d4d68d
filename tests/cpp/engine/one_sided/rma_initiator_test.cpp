// One-sided transfers: both halves of the protocol, connected by a wire with
// faults on order.
#include <gtest/gtest.h>

#include <random>

#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/fault_settings.h"
#include "fakes/peers/test_transfer.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

constexpr uint64_t kSeeds = kThreadSanitized ? 2 : 8;
constexpr size_t kSlot = 160 * 1024; // bytes for a single transfer
constexpr size_t kSlots = 40;
constexpr uint32_t kNoteTag = 9;

class TransferTraffic : public ::testing::TestWithParam<Setting> {
 protected:
  struct One {
    TestTransferPtr transfer;
    int from;
    size_t slot;
    TestTransfer::Pieces pieces;
    GuardedPtr note, noted; // null: no note
    Bytes before; // of the destination
  };

  static const std::array<Bytes, 2>& originals() {
    static const std::array<Bytes, 2> both{
        pattern(kSlot * kSlots, 1), pattern(kSlot * kSlots, 2)};
    return both;
  }
  void begin(uint64_t seed) {
    random.seed(seed);
    Faults faults = GetParam().faults;
    faults.seed = seed;
    pair = std::make_unique<Pair>(faults, Outbound::Limits{1000, 20000});
    all.clear();
    for (int end = 0; end < 2; ++end) {
      memory[end] = originals()[end];
      regions[end] = pair->end(end).regions.add(
          {memory[end].data(), memory[end].size()}, "memory", nullptr);
    }
  }
  TestTransfer::Pieces somePieces(size_t slot) {
    TestTransfer::Pieces pieces;
    const auto base = static_cast<int64_t>(slot * kSlot);
    const size_t count = random() % 8 == 0 ? 200 : random() % 5;
    const size_t most = kSlot / std::max<size_t>(count, 1);
    for (size_t i = 0; i < count; ++i) {
      const auto length = static_cast<int64_t>(random() % (most + 1));
      const auto at = base + static_cast<int64_t>(i * most);
      pieces.push_back({at, at, length});
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    return pieces;
  }
  Bytes& destination(const One& one) {
    return memory[one.transfer->write() ? 1 - one.from : one.from];
  }
  void transferSome() {
    const size_t slot = all.size();
    if (slot >= kSlots) {
      return;
    }
    One one{
        nullptr,
        static_cast<int>(random() % 2),
        slot,
        somePieces(slot),
        nullptr,
        nullptr,
        {}};
    const bool write = random() % 2 == 0;
    one.transfer = TestTransfer::make(
        write ? Operation::Kind::kWrite : Operation::Kind::kRead,
        1 - one.from,
        regions[one.from],
        regions[1 - one.from]->handle(),
        one.pieces);
    if (random() % 3 == 0) {
      one.note = GuardedOperation::send(
          1 - one.from, kNoteTag + static_cast<uint32_t>(slot), pattern(8));
      one.transfer->note = one.note;
      one.noted = GuardedOperation::receive(
          one.from, kNoteTag + static_cast<uint32_t>(slot), 8);
      pair->receive(1 - one.from, one.noted);
    }
    const auto& target = destination(one);
    one.before.assign(
        target.begin() + static_cast<ptrdiff_t>(slot * kSlot),
        target.begin() + static_cast<ptrdiff_t>((slot + 1) * kSlot));
    all.push_back(one);
    pair->send(one.from, one.transfer);
  }
  void replaceSome() {
    const auto& faults = GetParam().faults;
    const auto dice = faults.replaceable ? random() % 20 : 2;
    if (dice == 0) {
      pair->sever(static_cast<int>(random() % 2));
    } else if (dice == 1) {
      pair->replace(faults);
    }
  }
  void checkBytes(const One& one) {
    const int source = one.transfer->write() ? one.from : 1 - one.from;
    Bytes expected = one.before;
    const auto& original = originals()[source];
    for (const auto& [here, there, length] : one.pieces) {
      std::memcpy(
          expected.data() + here - one.slot * kSlot,
          original.data() + there,
          static_cast<size_t>(length));
    }
    const auto& target = destination(one);
    ASSERT_TRUE(std::equal(
        expected.begin(), expected.end(), target.data() + one.slot * kSlot))
        << one.transfer->describe();
  }
  void checkAll() {
    for (const auto& one : all) {
      ASSERT_EQ(one.transfer->ends(), 1) << one.transfer->describe();
      ASSERT_EQ(one.transfer->releases(), 1);
      ASSERT_TRUE(one.transfer->status().ok())
          << one.transfer->status().message();
      checkBytes(one);
      if (one.note) {
        ASSERT_EQ(one.noted->ends(), 1);
        ASSERT_TRUE(one.noted->status().ok());
      }
    }
    for (int end = 0; end < 2; ++end) {
      EXPECT_TRUE(pair->channel(end).idle());
      EXPECT_EQ(regions[end]->uses, 0U);
    }
  }

  const LogCapture quiet;
  std::mt19937_64 random;
  std::unique_ptr<Pair> pair;
  Bytes memory[2];
  RegionPtr regions[2];
  std::vector<One> all;
};

TEST_P(TransferTraffic, EveryByteGoesWhereItBelongsAndNothingElse) {
  for (uint64_t seed = 1; seed <= kSeeds && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    begin(seed);
    for (int step = 0; step < 150; ++step) {
      random() % 2 == 0 ? transferSome()
                        : (void)pair->end(int(random() % 2)).poll();
      replaceSome();
    }
    if (GetParam().faults.replaceable) {
      pair->replace(GetParam().faults);
    }
    pair->settle();
    checkAll();
  }
}

// When a note is received, the bytes must be in place.
TEST_P(TransferTraffic, NotesComeAfterTheBytes) {
  begin(1);
  for (size_t slot = 0; slot < 20; ++slot) {
    const auto at = static_cast<int64_t>(slot * kSlot);
    const auto write = TestTransfer::writeTo(
        1, regions[0], regions[1]->handle(), {{at, at, kSlot}});
    write->note = GuardedOperation::send(1, kNoteTag, pattern(4));
    const auto noted = GuardedOperation::receive(0, kNoteTag, 4);
    bool right = false;
    noted->onDone([&, at] {
      right = std::equal(
          memory[0].begin() + at,
          memory[0].begin() + at + kSlot,
          memory[1].begin() + at);
    });
    pair->receive(1, noted);
    pair->send(0, write);
    pair->settle();
    ASSERT_TRUE(noted->done());
    EXPECT_TRUE(right);
  }
}

TEST_P(TransferTraffic, WhatWasCancelledTouchesNothingAfterItsEnd) {
  const Status why(ErrorCode::kTimeout, "taken back");
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    begin(seed);
    std::vector<std::pair<size_t, bool>> cancelled; // slot, whether a read
    for (int step = 0; step < 200; ++step) {
      transferSome();
      pair->end(static_cast<int>(random() % 2)).poll();
      const auto& one = all[random() % all.size()];
      if (random() % 3 == 0 && !one.transfer->done()) {
        pair->end(one.from).cancel(pair->group(one.from), one.transfer, why);
        one.transfer->onDone([this, one] {
          if (!one.transfer->status().ok() && !one.transfer->write()) {
            // The memory is the caller's again.
            std::memset(
                memory[one.from].data() + one.slot * kSlot, 0x5a, kSlot);
          }
        });
      }
      replaceSome();
    }
    if (GetParam().faults.replaceable) {
      pair->replace(GetParam().faults);
    }
    pair->settle();
    size_t taken = 0;
    for (const auto& one : all) {
      ASSERT_EQ(one.transfer->ends(), 1);
      ASSERT_EQ(one.transfer->releases(), 1);
      if (one.transfer->status().ok()) {
        continue;
      }
      ++taken;
      EXPECT_EQ(one.transfer->status().message(), why.message());
      const auto* const at = memory[one.from].data() + one.slot * kSlot;
      if (!one.transfer->write()) {
        EXPECT_EQ(
            std::count(at, at + kSlot, std::byte{0x5a}),
            static_cast<ptrdiff_t>(kSlot));
      }
    }
    EXPECT_TRUE(pair->channel(0).idle());
    EXPECT_TRUE(pair->channel(1).idle());
  }
}

TEST_P(TransferTraffic, EverythingEndsOnceWhenTheRouteBreaks) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    begin(seed);
    for (int step = 0; step < 100; ++step) {
      transferSome();
      pair->end(static_cast<int>(random() % 2)).poll();
    }
    for (int end = 0; end < 2; ++end) {
      pair->channel(end).fail(
          Status(ErrorCode::kPeerFailed, "its process has ended"));
      pair->end(end).settle();
    }
    pair->settle();
    for (const auto& one : all) {
      ASSERT_EQ(one.transfer->ends(), 1);
      ASSERT_EQ(one.transfer->releases(), 1);
    }
    for (int end = 0; end < 2; ++end) {
      EXPECT_TRUE(pair->channel(end).idle());
      EXPECT_EQ(regions[end]->uses, 0U);
      EXPECT_FALSE(regions[end]->lent());
    }
  }
}

// The owner recalls the region during transfers.
TEST_P(TransferTraffic, RecalledRegionComesBackOnceNothingTouchesIt) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    begin(seed);
    for (int step = 0; step < 60; ++step) {
      transferSome();
      pair->end(static_cast<int>(random() % 2)).poll();
    }
    regions[1]->closing = true;
    pair->channel(1).parts()->target.recall(*regions[1]);
    for (int i = 0; i < 100000 && (regions[1]->lent() || regions[1]->uses > 0);
         ++i) {
      pair->end(static_cast<int>(random() % 2)).poll();
    }
    ASSERT_FALSE(regions[1]->lent() || regions[1]->uses > 0);
    std::fill(memory[1].begin(), memory[1].end(), std::byte{0x77});
    transferSome();
    pair->settle();
    EXPECT_EQ(
        std::count(memory[1].begin(), memory[1].end(), std::byte{0x77}),
        static_cast<ptrdiff_t>(memory[1].size()))
        << "something was written into memory that was given back";
    for (const auto& one : all) {
      ASSERT_EQ(one.transfer->ends(), 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings,
    TransferTraffic,
    ::testing::ValuesIn(kSettings),
    [](const auto& instance) { return std::string(instance.param.name); });

} // namespace
} // namespace dlslime::testing
