#include "transports/shm/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "fakes/world.h"

namespace dlslime::shm {
namespace {

using ::dlslime::testing::pattern;
using Next = RingConsumer::Next;

constexpr size_t kRingBytes = 16 * 1024;

class RingTest : public ::testing::Test {
 protected:
  RingTest() {
    // streamCopy() needs cache lines.
    void* address = std::aligned_alloc(4096, kRingBytes);
    std::memset(address, 0, kRingBytes);
    buffer.reset(static_cast<std::byte*>(address));
    producer.emplace(control, buffer.get(), kRingBytes);
    consumer.emplace(control, buffer.get(), kRingBytes);
  }
  bool push(uint64_t number, const Bytes& payload) {
    MessageHeader header;
    header.type = MessageType::kEager;
    header.sequence = number;
    return producer->push(header, payload);
  }
  // Takes the next record, with the expected payload, and returns the number.
  uint64_t pop(const Bytes& expected) {
    MessageHeader header;
    ByteSpan payload;
    EXPECT_EQ(consumer->peek(header, payload), Next::kMessage);
    EXPECT_TRUE(std::equal(
        payload.begin(), payload.end(), expected.begin(), expected.end()));
    consumer->pop();
    return header.sequence;
  }
  Next peek() {
    MessageHeader header;
    ByteSpan payload;
    return consumer->peek(header, payload);
  }
  MessageHeader* headerAt(size_t place) {
    return reinterpret_cast<MessageHeader*>(buffer.get() + place);
  }

  struct Free {
    void operator()(std::byte* memory) const {
      std::free(memory);
    }
  };
  RingControl control{};
  std::unique_ptr<std::byte, Free> buffer;
  std::optional<RingProducer> producer;
  std::optional<RingConsumer> consumer;
};

TEST_F(RingTest, EmptyRingHasNothing) {
  EXPECT_EQ(peek(), Next::kNone);
  EXPECT_TRUE(consumer->empty());
}

TEST_F(RingTest, HeaderAndPayloadArriveAsSent) {
  MessageHeader header;
  header.type = MessageType::kRts;
  header.tag = 5;
  header.address = 0x123456789abcdef0;
  header.sequence = 9;
  const Bytes payload = pattern(100);
  ASSERT_TRUE(producer->push(header, payload));
  MessageHeader got;
  ByteSpan bytes;
  ASSERT_EQ(consumer->peek(got, bytes), Next::kMessage);
  header.payloadSize = 100;
  EXPECT_EQ(std::memcmp(&got, &header, sizeof(got)), 0);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), payload.begin()));
}

TEST_F(RingTest, PeekTwiceSeesTheSameRecord) {
  ASSERT_TRUE(push(1, pattern(10)));
  ASSERT_TRUE(push(2, pattern(20)));
  EXPECT_EQ(peek(), Next::kMessage);
  EXPECT_EQ(pop(pattern(10)), 1U);
  EXPECT_EQ(pop(pattern(20)), 2U);
  EXPECT_EQ(peek(), Next::kNone);
}

TEST_F(RingTest, EveryPayloadSizeWrapsAround) {
  uint64_t number = 0;
  for (size_t size = 0; size <= maxRingPayload(kRingBytes); ++size) {
    const Bytes payload = pattern(size, static_cast<unsigned>(size));
    // Enough rounds for each size to meet the end of the buffer.
    const size_t rounds = kRingBytes / recordBytes(size) + 2;
    for (size_t i = 0; i < (size < 260 ? rounds : 3); ++i) {
      ASSERT_TRUE(push(++number, payload)) << size;
      ASSERT_EQ(pop(payload), number) << size;
    }
  }
}

TEST_F(RingTest, MixedSizesWithSeveralInFlightKeepTheirOrder) {
  std::mt19937 random(3);
  std::deque<std::pair<uint64_t, Bytes>> inFlight;
  uint64_t number = 0;
  for (int step = 0; step < 100000; ++step) {
    if (random() % 2 == 0) {
      const size_t most = random() % 8 == 0 ? maxRingPayload(kRingBytes) : 200;
      Bytes payload = pattern(random() % (most + 1), random() % 251);
      if (push(number + 1, payload)) {
        inFlight.emplace_back(++number, std::move(payload));
      }
    } else if (!inFlight.empty()) {
      ASSERT_EQ(pop(inFlight.front().second), inFlight.front().first);
      inFlight.pop_front();
    } else {
      ASSERT_EQ(peek(), Next::kNone);
    }
  }
}

TEST_F(RingTest, FullRingRefusesAndTakesAgainAfterAPop) {
  const Bytes payload = pattern(1000);
  uint64_t pushed = 0;
  while (push(pushed + 1, payload)) {
    ++pushed;
  }
  EXPECT_GE(pushed, kRingBytes / recordBytes(1000) - 1);
  EXPECT_FALSE(push(99, payload));
  EXPECT_EQ(pop(payload), 1U);
  EXPECT_TRUE(push(pushed + 1, payload));
  for (uint64_t i = 2; i <= pushed + 1; ++i) {
    EXPECT_EQ(pop(payload), i);
  }
}

TEST_F(RingTest, LargestPayloadFitsAnEmptyRingWhereverItStands) {
  const Bytes largest = pattern(maxRingPayload(kRingBytes));
  for (size_t step = 0; step < kRingBytes / kCacheLine; ++step) {
    ASSERT_TRUE(push(1, {}));
    pop({});
    ASSERT_TRUE(push(2, largest)) << step;
    pop(largest);
  }
}

TEST_F(RingTest, ProducerThatFoundNoRoomIsToldOnce) {
  const Bytes payload = pattern(1000);
  while (push(1, payload)) {
  }
  EXPECT_EQ(control.producerWaits.load(), 1U);
  pop(payload);
  EXPECT_TRUE(consumer->takeProducerWaits());
  EXPECT_FALSE(consumer->takeProducerWaits());
}

TEST_F(RingTest, ProducerThatFoundRoomIsNotToldOfIt) {
  ASSERT_TRUE(push(1, pattern(10)));
  pop(pattern(10));
  EXPECT_FALSE(consumer->takeProducerWaits());
}

TEST_F(RingTest, TailBeyondTheRingIsBroken) {
  control.tail = kRingBytes + 64;
  EXPECT_EQ(peek(), Next::kBroken);
}

TEST_F(RingTest, TailThatGoesBackIsBroken) {
  ASSERT_TRUE(push(1, pattern(500)));
  pop(pattern(500));
  control.tail = 64;
  EXPECT_EQ(peek(), Next::kBroken);
}

TEST_F(RingTest, TailWithinACacheLineIsBroken) {
  control.tail = 100;
  EXPECT_EQ(peek(), Next::kBroken);
}

TEST_F(RingTest, PayloadBeyondTheTailIsBroken) {
  ASSERT_TRUE(push(1, pattern(100)));
  headerAt(0)->payloadSize = 200;
  EXPECT_EQ(peek(), Next::kBroken);
}

TEST_F(RingTest, HugePayloadIsBroken) {
  for (const uint32_t size : {0xffffffffU, 0xffffffc0U, 0x80000000U, 16384U}) {
    RingControl words{};
    RingConsumer reader(words, buffer.get(), kRingBytes);
    words.tail = kRingBytes;
    *headerAt(0) = {};
    headerAt(0)->type = MessageType::kEager;
    headerAt(0)->payloadSize = size;
    MessageHeader header;
    ByteSpan payload;
    EXPECT_EQ(reader.peek(header, payload), Next::kBroken) << size;
  }
}

TEST_F(RingTest, MarkerAtTheStartIsBroken) {
  control.tail = 64; // all zero: the marker's type
  EXPECT_EQ(peek(), Next::kBroken);
}

TEST_F(RingTest, MarkerThatSkipsBeyondTheTailIsBroken) {
  ASSERT_TRUE(push(1, {}));
  pop({});
  ASSERT_TRUE(push(2, {}));
  *headerAt(64) = {};
  EXPECT_EQ(peek(), Next::kBroken);
}

TEST_F(RingTest, RandomBytesNeverLeadOutside) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    RingControl words{};
    RingConsumer reader(words, buffer.get(), kRingBytes);
    for (size_t at = 0; at < kRingBytes; at += 8) {
      const uint64_t word = random() & random();
      std::memcpy(buffer.get() + at, &word, 8);
      if (at % 64 == 56) { // payloadSize: often small enough to be taken
        const auto size = static_cast<uint32_t>(random() % 5000);
        std::memcpy(buffer.get() + at + 4, &size, 4);
      }
    }
    words.tail = random() % (kRingBytes / 64 + 2) * 64;
    MessageHeader header;
    ByteSpan payload;
    for (int i = 0; i < 1000; ++i) {
      if (reader.peek(header, payload) != Next::kMessage) {
        break;
      }
      ASSERT_GE(payload.data(), buffer.get());
      ASSERT_LE(payload.data() + payload.size(), buffer.get() + kRingBytes);
      reader.pop();
    }
  }
}

TEST_F(RingTest, LyingHeadNeverMakesTheProducerWriteOutside) {
  std::mt19937_64 random(5);
  const Bytes payload = pattern(3000);
  for (int i = 0; i < 2000; ++i) {
    control.head = i % 3 == 0 ? random() : random() % (4 * kRingBytes);
    static_cast<void>(push(1, payload)); // the address sanitizer checks
  }
}

TEST_F(RingTest, TwoThreadsPassEverythingInOrder) {
  constexpr uint64_t kMessages = 60000;
  std::thread writer([&] {
    std::mt19937 random(1);
    Bytes payload;
    for (uint64_t number = 1; number <= kMessages; ++number) {
      payload.assign(random() % 700, static_cast<std::byte>(number & 0xff));
      while (!push(number, payload)) {
        std::this_thread::yield();
      }
    }
  });
  uint64_t wrong = 0;
  for (uint64_t number = 1; number <= kMessages;) {
    MessageHeader header;
    ByteSpan payload;
    const auto next = consumer->peek(header, payload);
    ASSERT_NE(next, Next::kBroken);
    if (next == Next::kNone) {
      std::this_thread::yield();
      continue;
    }
    wrong += header.sequence != number;
    for (const auto byte : payload) {
      wrong += byte != static_cast<std::byte>(number & 0xff);
    }
    consumer->pop();
    ++number;
  }
  writer.join();
  EXPECT_EQ(wrong, 0U);
}

// After a refused push, a sleeping producer tries again only when told; the
// consumer must tell whenever room comes.
TEST_F(RingTest, ProducerThatSleepsUntilToldNeverMissesRoom) {
  constexpr uint64_t kMessages = 20000;
  std::atomic<uint64_t> bells{0};
  std::atomic<bool> stop{false};
  const Bytes payload = pattern(900);
  std::thread writer([&] {
    uint64_t heard = 0;
    for (uint64_t number = 1; number <= kMessages; ++number) {
      while (!push(number, payload) && !stop) {
        while (bells == heard && !stop) {
          std::this_thread::yield();
        }
        heard = bells;
      }
    }
  });
  uint64_t taken = 0;
  auto deadline = deadlineAfter(milliseconds(30000)); // for the next message
  while (taken < kMessages && Clock::now() < deadline) {
    bool any = false;
    while (peek() == Next::kMessage) {
      consumer->pop();
      ++taken;
      any = true;
    }
    if (any) {
      deadline = deadlineAfter(milliseconds(30000));
    }
    if (any && consumer->takeProducerWaits()) {
      ++bells;
    } else {
      std::this_thread::yield();
    }
  }
  stop = true;
  writer.join();
  EXPECT_EQ(taken, kMessages);
}

} // namespace
} // namespace dlslime::shm
