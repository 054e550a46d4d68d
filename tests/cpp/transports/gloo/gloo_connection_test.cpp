#include "transports/gloo/gloo_connection.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "fakes/memory_carriers.h"
#include "fakes/world.h"

namespace dlslime::gloo {
namespace {

using ::dlslime::testing::CarrierFaults;
using ::dlslime::testing::eventually;
using ::dlslime::testing::kAnHour;
using ::dlslime::testing::MemoryCarriers;
using ::dlslime::testing::pattern;

constexpr size_t kFrame = 8 * 1024;

class Recorder final : public ConnectionEvents {
 public:
  void onMessage(const MessageHeader& header, ByteSpan payload) override {
    messages.emplace_back(header, Bytes(payload.begin(), payload.end()));
  }
  void onPulled(uint64_t /*pullId*/, const Status& /*status*/) override {}
  std::vector<std::pair<MessageHeader, Bytes>> messages;
};

class GlooConnectionTest : public ::testing::Test {
 protected:
  std::unique_ptr<GlooConnection> connect(
      int end,
      milliseconds drainTime = GlooPump::kDrainTime) {
    return std::make_unique<GlooConnection>(
        [source = carriers, end] { return source->make("n", end, nullptr); },
        [this] { ++wakes; },
        drainTime);
  }
  static MessageHeader header(uint64_t number) {
    MessageHeader made;
    made.type = MessageType::kEager;
    made.sequence = number;
    return made;
  }
  // Polls until `count` messages have come or the connection breaks.
  Status pollFor(GlooConnection& connection, size_t count) {
    const auto deadline = deadlineAfter(milliseconds(10000));
    Status broken;
    while (events.messages.size() < count && broken.ok() &&
           Clock::now() < deadline) {
      if (!connection.poll(events, broken, kMessagesPerPoll)) {
        std::this_thread::sleep_for(microseconds(200));
      }
    }
    return broken;
  }

  std::shared_ptr<MemoryCarriers> carriers = std::make_shared<MemoryCarriers>();
  std::atomic<int> wakes{0};
  Recorder events;
};

TEST_F(GlooConnectionTest, PayloadsOfEverySizeArriveInOrder) {
  const auto first = connect(0);
  const auto second = connect(1);
  std::vector<size_t> sizes;
  for (const size_t size :
       {0UL,
        1UL,
        kFrame - 65,
        kFrame - 64,
        kFrame - 63,
        kFrame,
        100000UL,
        first->maxPayload()}) {
    sizes.push_back(size);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(first->send(header(i), pattern(sizes[i], unsigned(i))));
  }
  EXPECT_TRUE(pollFor(*second, sizes.size()).ok());
  ASSERT_EQ(events.messages.size(), sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(events.messages[i].first.sequence, i);
    EXPECT_EQ(events.messages[i].second, pattern(sizes[i], unsigned(i)));
  }
  EXPECT_GT(wakes, 0);
}

TEST_F(GlooConnectionTest, FullQueueRefusesAndWakesWhenThereIsRoom) {
  const auto first = connect(0);
  const Bytes payload = pattern(1 << 20);
  size_t sent = 0;
  while (sent < 100 && first->send(header(sent), payload)) {
    ++sent;
  }
  ASSERT_LT(sent, 20U);
  const int before = wakes;
  const auto second = connect(1);
  EXPECT_TRUE(pollFor(*second, sent).ok());
  EXPECT_EQ(events.messages.size(), sent);
  EXPECT_TRUE(eventually([&] { return wakes > before; }));
  EXPECT_TRUE(first->send(header(sent), payload));
}

TEST_F(GlooConnectionTest, CloseSendsWhatWaitsFirst) {
  auto first = connect(0, kAnHour);
  const auto second = connect(1);
  for (size_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(first->send(header(i), pattern(10000)));
  }
  EXPECT_TRUE(eventually([&] { return first->close(false); }));
  first.reset();
  EXPECT_TRUE(pollFor(*second, 200).ok());
  EXPECT_EQ(events.messages.size(), 200U);
  EXPECT_FALSE(pollFor(*second, 201).ok());
}

// The peer comes later, and must get the messages sent before.
TEST_F(GlooConnectionTest, CloseBeforeTheCarrierIsThereStillSends) {
  auto first = connect(0, kAnHour);
  for (size_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(first->send(header(i), pattern(100)));
  }
  std::unique_ptr<GlooConnection> second;
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    second = connect(1);
  });
  EXPECT_TRUE(eventually([&] { return first->close(false); }));
  first.reset();
  later.join();
  EXPECT_TRUE(pollFor(*second, 20).ok());
  EXPECT_EQ(events.messages.size(), 20U);
}

TEST_F(GlooConnectionTest, ErrorOfTheCarrierBreaksBothEndsWithItsText) {
  CarrierFaults faults;
  faults.breakAfterSends = 5;
  carriers = std::make_shared<MemoryCarriers>(faults);
  const auto first = connect(0);
  const auto second = connect(1);
  for (size_t i = 0; i < 50; ++i) {
    static_cast<void>(first->send(header(i), pattern(100)));
  }
  const auto here = pollFor(*first, 1000);
  EXPECT_EQ(here.code(), ErrorCode::kTransportFailed);
  EXPECT_NE(here.message().find("on purpose"), std::string::npos);
  const auto there = pollFor(*second, 1000);
  EXPECT_NE(there.message().find("on purpose"), std::string::npos);
  EXPECT_LE(events.messages.size(), 5U);
}

TEST_F(GlooConnectionTest, ErrorInMakingTheCarrierBreaksTheConnection) {
  CarrierFaults faults;
  faults.failingMake = 0;
  carriers = std::make_shared<MemoryCarriers>(faults);
  const auto first = connect(0);
  const auto broken = pollFor(*first, 1);
  EXPECT_NE(broken.message().find("no carrier"), std::string::npos);
}

// Making a carrier waits for Gloo's own time-out: half a minute and more.
TEST_F(GlooConnectionTest, CloseDoesNotWaitForAPeerThatNeverComes) {
  CarrierFaults faults;
  faults.hangingMake = 1;
  carriers = std::make_shared<MemoryCarriers>(faults);
  auto first = connect(0);
  ASSERT_TRUE(first->send(header(1), pattern(10)));
  const auto start = Clock::now();
  first.reset();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  const int woken = wakes;
  carriers->release(); // lets the abandoned thread end
  EXPECT_TRUE(eventually([&] { return carriers->making() == 0; }));
  EXPECT_EQ(wakes, woken);
  EXPECT_EQ(carriers->live(), 0);
}

TEST_F(GlooConnectionTest, FrameThatAnnouncesTooMuchIsRefused) {
  const auto second = connect(1);
  const auto raw = carriers->make("n", 0, nullptr);
  for (const uint32_t size : {1U + (1 << 20), 0xffffffffU}) {
    Bytes frame(kFrame);
    MessageHeader bad = header(1);
    bad.payloadSize = size;
    std::memcpy(frame.data(), &bad, sizeof(bad));
    raw->send(frame.data(), frame.size());
  }
  const auto broken = pollFor(*second, 1);
  EXPECT_EQ(broken.code(), ErrorCode::kTransportFailed);
  EXPECT_TRUE(events.messages.empty());
}

TEST_F(GlooConnectionTest, RandomFramesNeverCrash) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    carriers = std::make_shared<MemoryCarriers>();
    const auto second = connect(1);
    const auto raw = carriers->make("n", 0, nullptr);
    for (int i = 0; i < 5; ++i) {
      Bytes frame(kFrame);
      for (size_t at = 0; at < 128; ++at) {
        frame[at] = static_cast<std::byte>(random());
      }
      frame[62] &= std::byte{static_cast<uint8_t>(random() % 17)};
      frame[63] = {};
      raw->send(frame.data(), frame.size());
    }
    raw->abort();
    EXPECT_FALSE(pollFor(*second, 1000).ok());
  }
}

TEST_F(GlooConnectionTest, ThreadsAndCarriersAreGoneAfterClose) {
  {
    auto first = connect(0);
    auto second = connect(1);
    static_cast<void>(first->send(header(1), pattern(10)));
    EXPECT_TRUE(pollFor(*second, 1).ok());
    EXPECT_EQ(carriers->live(), 2);
  }
  EXPECT_EQ(carriers->live(), 0);
}

} // namespace
} // namespace dlslime::gloo
