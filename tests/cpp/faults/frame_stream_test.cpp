// What a socket's frames cost of memory: all of it at the beginning.
#include "tcp/frame_stream.h"

#include <gtest/gtest.h>

#include "fakes/stream_sockets.h"
#include "faults/fault_plan.h"
#include "world.h"

namespace dlslime::testing {
namespace {

constexpr size_t kMost = tcp::FrameStream::kMostPayloadBytes;

TEST(FrameStreamMemory, IsTakenWhenItIsMade) {
  auto [one, other] = tcpEnds(4096);
  tcp::FrameStream sender({std::move(one), {}}),
      receiver({std::move(other), {}});
  const auto payload = pattern(kMost);
  static CallRecord record;
  record = {};
  size_t sent = 0, received = 0;
  armFaults(nullptr, &record);
  {
    const RoleScope caller(ThreadRole::kCaller);
    for (int i = 0; i < 20000 && received < 200; ++i) {
      const auto size = sent % 3 == 0 ? kMost : sent * 131 % 9000;
      if (sender.put(
              headerOf(sent), ByteSpan(payload).first(size), sent % 2 == 0)) {
        ++sent;
      } else {
        sender.flush();
      }
      while (receiver.next()) {
        ++received;
      }
      receiver.fill();
    }
    while (sender.put(headerOf(0), ByteSpan(payload).first(3000), false)) {
    }
    sender.putLast(headerOf(1));
  }
  disarmFaults();
  EXPECT_EQ(received, 200U);
  EXPECT_EQ(record.counts[static_cast<int>(Call::kCallerAllocation)], 0U);
  EXPECT_GT(record.counts[static_cast<int>(Call::kSendMessage)], 0U);
}

} // namespace
} // namespace dlslime::testing
