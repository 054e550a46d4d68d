// Both halves of the protocol, connected by a wire with faults on order.
#include <gtest/gtest.h>

#include <random>

#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/fault_settings.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

constexpr int kAny = Operation::kAnySource;
constexpr uint64_t kSeeds = kThreadSanitized ? 2 : 15;
constexpr Outbound::Limits kSmall{1000, 20000};
// Several pieces of a stream. Beyond 128 KiB the address sanitizer asks the
// system for each piece of memory, and would take most of the time.
constexpr size_t kMost = 120000;

// A pair under random traffic in both directions; every tag's n-th send must
// meet its n-th receive.
class ProtocolTraffic : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr int kTags = 4;
  struct Lane {
    std::vector<GuardedPtr> sends, receives;
    std::vector<size_t> sent, capacity;
  };

  size_t someSize() {
    switch (random() % 6) {
      case 0:
        return 0;
      case 1:
        return 900 + random() % 200; // around the eager limit
      case 2:
        return 60000 + random() % (kMost - 60000);
      default:
        return random() % 500;
    }
  }
  void sendSome(int from, uint32_t tag) {
    auto& lane = lanes[from][tag];
    const size_t size = someSize();
    lane.sent.push_back(size);
    lane.sends.push_back(GuardedOperation::send(
        1 - from, tag, pattern(size, unsigned(lane.sends.size()))));
    pair->send(from, lane.sends.back());
  }
  void receiveSome(int at, uint32_t tag) {
    auto& lane = lanes[1 - at][tag];
    const size_t size = random() % 10 == 0 ? random() % 1000 : kMost;
    lane.capacity.push_back(size);
    // Beside receives from any source no memory is offered.
    const unsigned anyShare = GetParam().faults.pushes ? 100 : 4;
    lane.receives.push_back(GuardedOperation::receive(
        random() % anyShare == 0 ? kAny : 1 - at, tag, size));
    pair->receive(at, lane.receives.back());
  }
  // With replaceable connections: severs an end, or replaces the connection of
  // both ends.
  void replaceSome(const Faults& faults) {
    const auto dice = faults.replaceable ? random() % 30 : 2;
    if (dice == 0) {
      pair->sever(static_cast<int>(random() % 2));
    } else if (dice == 1) {
      pair->replace(faults);
      ++replaced;
    }
  }
  void run(uint64_t seed) {
    random.seed(seed);
    Faults faults = GetParam().faults;
    faults.seed = seed;
    pair = std::make_unique<Pair>(faults, kSmall);
    for (auto& direction : lanes) {
      for (auto& lane : direction) {
        lane = {};
      }
    }
    for (int step = 0; step < 400; ++step) {
      const int end = static_cast<int>(random() % 2);
      const auto tag = static_cast<uint32_t>(random() % kTags);
      switch (random() % 3) {
        case 0:
          sendSome(end, tag);
          break;
        case 1:
          receiveSome(end, tag);
          break;
        default:
          pair->end(end).poll();
      }
      replaceSome(faults);
    }
    if (faults.replaceable) {
      pair->replace(faults);
    }
    for (int end = 0; end < 2; ++end) {
      for (uint32_t tag = 0; tag < kTags; ++tag) {
        auto& lane = lanes[end][tag];
        while (lane.sends.size() < lane.receives.size()) {
          if (GetParam().faults.pushes) {
            pair->settle(); // tells the sender all offers
          }
          sendSome(end, tag);
        }
        while (lane.receives.size() < lane.sends.size()) {
          receiveSome(1 - end, tag);
        }
      }
    }
    pair->settle();
  }
  void checkMessage(const Lane& lane, size_t i) {
    const auto& send = *lane.sends[i];
    const auto& receive = *lane.receives[i];
    ASSERT_EQ(send.ends(), 1) << send.describe();
    ASSERT_EQ(receive.ends(), 1) << receive.describe();
    ASSERT_EQ(send.releases(), 1);
    ASSERT_EQ(receive.releases(), 1);
    if (lane.sent[i] > lane.capacity[i]) {
      EXPECT_EQ(receive.status().code(), ErrorCode::kTruncated);
      EXPECT_EQ(receive.result(), Bytes(lane.capacity[i]));
      EXPECT_TRUE(
          send.status().code() == ErrorCode::kTruncated ||
          (send.status().ok() && lane.sent[i] <= kSmall.eagerBytes));
      return;
    }
    ASSERT_TRUE(send.status().ok()) << send.status().message();
    ASSERT_TRUE(receive.status().ok()) << receive.status().message();
    EXPECT_EQ(receive.bytes(), lane.sent[i]);
    Bytes got = receive.result();
    got.resize(lane.sent[i]);
    ASSERT_EQ(got, pattern(lane.sent[i], unsigned(i)));
  }
  void check() {
    for (int end = 0; end < 2; ++end) {
      for (const auto& lane : lanes[end]) {
        for (size_t i = 0; i < lane.sends.size(); ++i) {
          checkMessage(lane, i);
          if (HasFatalFailure()) {
            return;
          }
          EXPECT_EQ(
              lane.receives[i]->status().ok() ? lane.receives[i]->source()
                                              : end,
              end);
        }
      }
      EXPECT_EQ(pair->channel(end).state(), PeerChannel::State::kOpen);
      EXPECT_TRUE(pair->channel(end).idle());
      EXPECT_TRUE(pair->group(end).pending().empty());
    }
  }

  const LogCapture quiet;
  std::mt19937_64 random;
  std::unique_ptr<Pair> pair;
  Lane lanes[2][kTags];
  uint64_t pushed = 0;
  uint64_t replaced = 0;
};

TEST_P(ProtocolTraffic, EverythingArrivesOnceInOrderWithItsBytes) {
  for (uint64_t seed = 1; seed <= kSeeds && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(seed);
    check();
    pushed += pair->group(0).link(1).counters.pushedMessages;
  }
  EXPECT_EQ(pushed > kSeeds, GetParam().faults.pushes) << pushed;
  EXPECT_EQ(replaced > 2 * kSeeds, GetParam().faults.replaceable) << replaced;
}

// After a break each end learns of the peer's end by the socket.
TEST_P(ProtocolTraffic, EverythingEndsOnceWhenTheRouteBreaks) {
  for (uint64_t seed = 1; seed <= 2 * kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Faults faults = GetParam().faults;
    faults.breakAfter = 5 + seed * 7;
    faults.seed = seed;
    random.seed(seed);
    pair = std::make_unique<Pair>(faults, kSmall);
    std::vector<GuardedPtr> all;
    for (int step = 0; step < 300; ++step) {
      const int end = static_cast<int>(random() % 2);
      const auto tag = static_cast<uint32_t>(random() % kTags);
      const auto size = someSize();
      const bool sends = random() % 2 == 0;
      all.push_back(
          sends ? GuardedOperation::send(1 - end, tag, pattern(size))
                : GuardedOperation::receive(1 - end, tag, kMost));
      sends ? pair->send(end, all.back()) : pair->receive(end, all.back());
      pair->end(static_cast<int>(random() % 2)).poll();
    }
    pair->settle();
    for (int end = 0; end < 2; ++end) {
      pair->channel(end).peerClosed(
          Status(ErrorCode::kPeerFailed, "its process has ended"));
      pair->end(end).settle();
    }
    pair->settle();
    for (const auto& operation : all) {
      ASSERT_TRUE(operation->done()) << operation->describe();
      ASSERT_EQ(operation->ends(), 1);
      ASSERT_EQ(operation->releases(), 1);
    }
    EXPECT_TRUE(pair->channel(0).idle());
    EXPECT_TRUE(pair->channel(1).idle());
  }
}

// A send cancelled in time is not received; a received send has the right
// bytes.
TEST_P(ProtocolTraffic, CancellingAtRandomLosesNothingElse) {
  const Status why(ErrorCode::kTimeout, "taken back");
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Faults faults = GetParam().faults;
    faults.seed = seed;
    random.seed(seed);
    pair = std::make_unique<Pair>(faults, kSmall);
    std::vector<GuardedPtr> sends, receives;
    for (int step = 0; step < 300; ++step) {
      const auto dice = random() % 10;
      if (dice < 3) {
        Bytes bytes = pattern(4 + someSize());
        const auto number = static_cast<uint32_t>(sends.size());
        std::memcpy(bytes.data(), &number, 4);
        sends.push_back(GuardedOperation::send(1, 0, bytes));
        pair->send(0, sends.back());
      } else if (dice < 6) {
        receives.push_back(GuardedOperation::receive(0, 0, kMost + 4));
        pair->receive(1, receives.back());
      } else if (dice < 8) {
        pair->end(static_cast<int>(random() % 2)).poll();
      } else if (dice == 8 && !sends.empty()) {
        pair->cancel(0, sends[random() % sends.size()]);
      } else if (dice == 9 && !receives.empty()) {
        pair->cancel(1, receives[random() % receives.size()]);
      }
      replaceSome(faults);
    }
    if (faults.replaceable) {
      pair->replace(faults);
    }
    for (size_t i = 0; i < sends.size(); ++i) { // room for the rest
      receives.push_back(GuardedOperation::receive(0, 0, kMost + 4));
      pair->receive(1, receives.back());
    }
    pair->settle();
    for (const auto& receive : receives) {
      pair->cancel(1, receive);
    }
    pair->settle();
    std::vector<int> got(sends.size());
    int64_t last = -1;
    for (const auto& receive : receives) {
      ASSERT_EQ(receive->ends(), 1);
      ASSERT_EQ(receive->releases(), 1);
      if (!receive->status().ok()) {
        EXPECT_EQ(receive->status().message(), why.message());
        continue;
      }
      uint32_t number = 0;
      std::memcpy(&number, receive->result().data(), 4);
      ASSERT_LT(number, sends.size());
      ASSERT_GT(number, last) << "out of order";
      last = number;
      ++got[number];
      Bytes expected = pattern(receive->bytes());
      std::memcpy(expected.data(), &number, 4);
      ASSERT_TRUE(std::equal(
          expected.begin(), expected.end(), receive->result().begin()));
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      ASSERT_EQ(sends[i]->ends(), 1) << sends[i]->describe();
      ASSERT_EQ(sends[i]->releases(), 1);
      const auto& status = sends[i]->status();
      if (status.code() == ErrorCode::kTimeout) {
        EXPECT_EQ(got[i], 0) << "cancelled, but received";
      } else if (status.code() == ErrorCode::kPeerFailed) {
        EXPECT_EQ(got[i], 0) << "given up, but received";
      } else {
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(got[i], 1) << "send " << i << " went well and is lost";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Wires,
    ProtocolTraffic,
    ::testing::ValuesIn(kSettings),
    [](const auto& instance) { return std::string(instance.param.name); });

} // namespace
} // namespace dlslime::testing
