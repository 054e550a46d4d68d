// Memory of a frame stream: allocated at the beginning, and never later.
#include "transports/tcp/frame_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "fakes/peers/stream_sockets.h"
#include "fakes/world.h"
#include "faults/fault_plan.h"

namespace dlslime::testing {
namespace {

constexpr size_t kMost = tcp::FrameStream::kMostPayloadBytes;

// Returns the allocations of many messages over small socket buffers; -1 if
// messages are missing.
int allocations() {
  auto [one, other] = tcpEnds(4096);
  tcp::FrameStream sender({std::move(one), {}});
  tcp::FrameStream receiver({std::move(other), {}});
  const auto payload = pattern(kMost);
  static CallRecord record;
  size_t sent = 0, received = 0;
  armFaults(nullptr, &record);
  {
    const RoleScope caller(ThreadRole::kCaller);
    const auto deadline = deadlineAfter(milliseconds(30000));
    while (received < 200 && Clock::now() < deadline) {
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
  const auto made = record.counts[static_cast<int>(Call::kCallerAllocation)];
  return received < 200 ? -1 : static_cast<int>(made);
}

// In a child process, where the streams of other tests have allocated nothing
// yet.
TEST(FrameStreamMemory, IsTakenWhenItIsMade) {
  EXPECT_EXIT(
      _exit(allocations() == 0 ? 7 : 1), ::testing::ExitedWithCode(7), "");
}

} // namespace
} // namespace dlslime::testing
