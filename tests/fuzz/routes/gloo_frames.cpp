// Frames of a header and a payload, through a peer's Gloo.
#include "transports/gloo/gloo_connection.h"

#include <semaphore>

#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

// Gives the bytes of the input, then breaks.
class FuzzedCarrier final : public gloo::Carrier {
 public:
  explicit FuzzedCarrier(Input input) : input_(input) {}
  void send(const std::byte* /*data*/, size_t /*size*/) override {}
  void receive(std::byte* data, size_t size) override {
    if (!input_.more()) {
      throw Error(ErrorCode::kPeerFailed, "the input is over");
    }
    std::memset(data, 0, size);
    const auto head = input_.upTo(std::min(size, sizeof(MessageHeader) + 8));
    copyBytes(data, head.data(), head.size());
  }
  void abort() noexcept override {}

 private:
  Input input_;
};

struct Checked final : ConnectionEvents {
  void onMessage(const MessageHeader& header, ByteSpan payload) override {
    require(header.payloadSize == payload.size(), "a payload is whole");
    require(payload.size() <= gloo::kMostPayloadBytes, "and no longer");
  }
  void onPulled(uint64_t, const Status&) override {}
  void onParted() override {}
};

void run(Input input) {
  std::counting_semaphore<> news(0);
  gloo::GlooConnection connection(
      [&] { return std::make_unique<FuzzedCarrier>(input); },
      [&] { news.release(); },
      milliseconds(0));
  Checked checked;
  Status broken;
  while (broken.ok()) {
    if (!connection.poll(checked, broken, 4)) {
      news.acquire();
    }
  }
  requirePlain(broken.message());
  connection.close(true);
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
