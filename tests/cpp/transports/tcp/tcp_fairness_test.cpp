// Within a batch, which is sent at the end, no message may wait for ever.
#include <thread>

#include "fakes/peers/tcp_ends.h"

namespace dlslime::tcp {
namespace {

using namespace ::dlslime::testing;

constexpr size_t kSize = 64 * 1024;

using TcpFairnessTest = TcpEnds;

TEST_F(TcpFairnessTest, SocketThatTakesMoreIsNewsAmidABatchToo) {
  auto ends = tcpEnds();
  open(one, std::move(ends[0]));
  one.connection->beginBatch();
  uint64_t sent = 0;
  ASSERT_TRUE(eventually([&] {
    while (one.send(sent, kSize)) {
      ++sent;
    }
    return !one.connection->poll(one.events, one.broken, kMessagesPerPoll) &&
        !one.send(sent, kSize);
  })) << "it is full";
  for (int quiet = 0; quiet < 20;) {
    quiet = readRaw(ends[1].get()).empty() ? quiet + 1 : 0;
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(eventually([&] {
    return one.connection->poll(one.events, one.broken, kMessagesPerPoll);
  }));
  EXPECT_TRUE(one.send(sent, kSize));
  one.connection->endBatch();
}

TEST_F(TcpFairnessTest, GatheredMessageGoesOutBehindASmallOneOfItsBatch) {
  auto ends = tcpEnds();
  open(one, std::move(ends[0]));
  const auto bytes = pattern(kSize);
  const ByteSpan place(bytes);
  one.connection->beginBatch();
  ASSERT_TRUE(one.send(0));
  auto& gatherer = *one.connection->gatherer();
  ASSERT_TRUE(gatherer.canGather(kSize));
  EXPECT_EQ(gatherer.sendGathered(headerOf(1), {&place, 1}), Fault::kNone);
  Bytes all;
  EXPECT_TRUE(eventually([&] {
    const auto some = readRaw(ends[1].get());
    all.insert(all.end(), some.begin(), some.end());
    return all.size() == 164 + 64 + kSize + 4; // with the verdict
  }));
  one.connection->endBatch();
}

} // namespace
} // namespace dlslime::tcp
