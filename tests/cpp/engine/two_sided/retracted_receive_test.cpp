// Receives cancelled while their message is being written into their memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "fakes/peers/scripted_channel.h"

namespace dlslime::testing {
namespace {

constexpr size_t kSize = 100'000; // more than an eager message

// A receive on memory that the owner may take away at any time.
class MappedReceive final : public Operation {
 public:
  explicit MappedReceive(std::byte* memory)
      : Operation(Kind::kReceive, 1, 5, viewOf(memory)) {}

 private:
  static MemoryView viewOf(std::byte* memory) {
    MemoryView view{memory, kSize};
    view.mayFault = true;
    return view;
  }
  void releaseMemory() override {}
};

class RetractedReceive : public ScriptedChannel {
 protected:
  RetractedReceive() : ScriptedChannel(true) {}
  ~RetractedReceive() override {
    munmap(memory, kSize);
  }
  // Lets the peer's message land after the receive was cancelled.
  void landAfterItsEnd() {
    const auto receive = std::make_shared<MappedReceive>(memory);
    endpoint.receive(*group, receive);
    ASSERT_EQ(connection->offered.size(), 1U);
    const auto offer = connection->offered[0].id;
    const auto bytes = pattern(kSize);
    std::copy(bytes.begin(), bytes.end(), memory);
    endpoint.cancel(*group, receive, {ErrorCode::kTimeout, "taken back"});
    ASSERT_TRUE(receive->done());
    // Unmapping would free the addresses for further mappings.
    if (gone) {
      mprotect(memory, kSize, PROT_NONE);
    }
    channel->events().onLanded(offer, static_cast<uint16_t>(++sequence), kSize);
    endpoint.settle();
  }
  GuardedPtr next(size_t size) {
    auto receive = GuardedOperation::receive(1, 5, size);
    endpoint.receive(*group, receive);
    return receive;
  }

  bool gone = false;
  std::byte* const memory = static_cast<std::byte*>(mmap(
      nullptr,
      kSize,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0));
};

TEST_F(RetractedReceive, ItsMessageGoesToTheNextReceive) {
  landAfterItsEnd();
  const auto receive = next(kSize);
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_EQ(receive->result(), pattern(kSize));
}

TEST_F(RetractedReceive, AMessageThatIsLostWithItsMemoryFailsTheNextOneAlone) {
  gone = true;
  landAfterItsEnd();
  const auto receive = next(kSize);
  EXPECT_EQ(receive->status().code(), ErrorCode::kTransportFailed);
  EXPECT_NE(
      receive->status().message().find(
          "was taken back; the memory can't be read"),
      std::string::npos)
      << receive->status().message();
  const auto after = next(10);
  deliver(message(MessageType::kEager, 5), pattern(10));
  EXPECT_TRUE(after->status().ok()) << after->status().message();
  EXPECT_EQ(after->result(), pattern(10));
}

} // namespace
} // namespace dlslime::testing
