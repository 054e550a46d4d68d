// What goes out where a connection sends little at a time.
#include <gtest/gtest.h>

#include "engine/region.h"
#include "fakes/scripted_channel.h"

namespace dlslime::testing {
namespace {

using ChannelTurns = ScriptedChannel;

TEST_F(ChannelTurns, LargeMessageAndReadOfThePeerTakeTurns) {
  const auto send = GuardedOperation::send(1, 5, pattern(4 << 20));
  endpoint.send(*group, send);
  ASSERT_EQ(countSent(MessageType::kAnnounce), 1U);
  auto request = message(MessageType::kRequest, 5);
  request.id = connection->sent.back().id;
  connection->mostPerPoll = 1;
  deliver(request);
  Bytes memory(4 << 20);
  const auto region =
      endpoint.regions.add({memory.data(), memory.size()}, "memory", nullptr);
  auto resolve = message(MessageType::kResolve, 0);
  resolve.id = region->handle().id;
  resolve.address = region->handle().secret;
  deliver(resolve);
  const FramePiece piece{0, memory.size()};
  const auto bytes = std::as_bytes(std::span(&piece, 1));
  auto fetch = message(MessageType::kFetch, 0);
  fetch.id = 9;
  fetch.offset = region->handle().id;
  deliver(fetch, Bytes(bytes.begin(), bytes.end()));
  connection->sent.clear();
  for (int i = 0; i < 20; ++i) {
    channel->poll();
  }
  EXPECT_GE(countSent(MessageType::kData), 9U);
  EXPECT_GE(countSent(MessageType::kChunk), 9U);
  channel->fail(Status(ErrorCode::kCancelled, "the test is over"));
  endpoint.settle();
}

} // namespace
} // namespace dlslime::testing
