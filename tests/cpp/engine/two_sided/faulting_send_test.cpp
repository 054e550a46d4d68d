// Sends of memory taken away by the owner.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "fakes/peers/scripted_channel.h"

namespace dlslime::testing {
namespace {

// A send of memory that can be taken away; counts its releases.
class MappedSend final : public Operation {
 public:
  MappedSend(std::byte* memory, size_t size)
      : Operation(Kind::kSend, 1, 5, viewOf(memory, size)) {}

  int releases = 0;

 private:
  static MemoryView viewOf(std::byte* memory, size_t size) {
    MemoryView view{memory, size};
    view.mayFault = true;
    return view;
  }
  void releaseMemory() override {
    ++releases;
  }
};

class FaultingSend : public ScriptedChannel {
 protected:
  static constexpr size_t kMost = 100'000;

  ~FaultingSend() override {
    munmap(memory, kMost);
  }
  std::shared_ptr<MappedSend> send(size_t size) {
    auto made = std::make_shared<MappedSend>(memory, size);
    endpoint.send(*group, made);
    return made;
  }
  void takeAway() {
    ASSERT_EQ(mprotect(memory, kMost, PROT_NONE), 0);
  }
  void giveBack() {
    ASSERT_EQ(mprotect(memory, kMost, PROT_READ | PROT_WRITE), 0);
  }

  std::byte* const memory = static_cast<std::byte*>(mmap(
      nullptr,
      kMost,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0));
};

// A receiver may never ask for the bytes.
TEST_F(FaultingSend, MemoryThatCantBeReadIsLetGoAtOnce) {
  takeAway();
  const auto message = send(100);
  ASSERT_TRUE(message->done());
  EXPECT_NE(message->status().message().find("memory"), std::string::npos);
  EXPECT_EQ(message->releases, 1);
  ASSERT_EQ(countSent(MessageType::kRts), 1U);
  auto finish = this->message(MessageType::kFinish, 5);
  finish.id = connection->sent.back().id;
  finish.status = FinishStatus::kFailed;
  deliver(finish);
  EXPECT_EQ(message->releases, 1);
  EXPECT_TRUE(channel->idle());
}

TEST_F(FaultingSend, IsReadOnlyOnceItCanGoOut) {
  connection->full = true;
  takeAway();
  const auto message = send(100);
  endpoint.poll();
  giveBack();
  connection->full = false;
  endpoint.poll();
  ASSERT_TRUE(message->done());
  EXPECT_TRUE(message->status().ok()) << message->status().message();
  EXPECT_EQ(countSent(MessageType::kEager), 1U);
}

TEST_F(FaultingSend, PiecesAreReadOnlyOnceTheyCanGoOut) {
  const auto message = send(kMost);
  ASSERT_EQ(countSent(MessageType::kRts), 1U);
  connection->full = true;
  takeAway();
  auto request = this->message(MessageType::kStreamRequest, 5);
  request.id = connection->sent.back().id;
  deliver(request);
  endpoint.poll();
  giveBack();
  connection->full = false;
  endpoint.poll();
  const auto& sent = connection->sent;
  EXPECT_EQ(countSent(MessageType::kData), 2U);
  EXPECT_TRUE(std::ranges::all_of(sent, [](const auto& header) {
    return header.status == FinishStatus::kOk;
  }));
}

} // namespace
} // namespace dlslime::testing
