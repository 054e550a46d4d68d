// Offers by which two processes of a host begin to share memory, with
// descriptors of any kind.
#include <sys/socket.h>

#include "descriptors.h"
#include "fuzz.h"
#include "transports/shm/layout.h"
#include "transports/shm/shm_transport.h"

namespace dlslime::fuzz {
namespace {

constexpr size_t kRingBytes = 1 << 14;
constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

shm::ShmTransport& transport() {
  static auto* const made = [] {
    checkLog();
    Config config;
    config.ringBytes = kRingBytes;
    return new shm::ShmTransport(config);
  }();
  return *made;
}

UniqueFd someDescriptor(Input& input) {
  const int seals = input.oneIn(2) ? kSealed : input.number<uint8_t>() & 15;
  switch (input.below(8)) {
    case 0:
      return UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC));
    case 1:
      return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    case 2:
      return memoryFile(input.number<uint16_t>(), seals);
    case 3:
      return memoryFile(shm::segmentBytes(1 << 15), seals);
    case 4:
    case 5:
      return memoryFile(shm::kDoorbellBytes, seals);
    default:
      return memoryFile(shm::segmentBytes(kRingBytes), seals);
  }
}

// Returns an offer; a proper offer has 8 bytes.
Offer someOffer(Input& input, size_t expected) {
  Offer offer;
  const size_t count = input.oneIn(4) ? input.below(5) : expected;
  for (size_t i = 0; i < count; ++i) {
    offer.fds.push_back(someDescriptor(input));
  }
  if (input.oneIn(2)) {
    ByteWriter writer;
    writer.number(input.any<uint64_t>({kRingBytes, 1 << 15, 1 << 30}));
    offer.blob = writer.take();
  } else {
    offer.blob = copyOf(input.blob());
  }
  return offer;
}

struct Nothing final : ConnectionEvents {
  void onMessage(const MessageHeader&, ByteSpan) override {}
  void onPulled(uint64_t, const Status&) override {}
};

void use(Connection& connection) {
  Nothing nothing;
  Status broken;
  static_cast<void>(connection.send({}, Bytes(64)));
  connection.poll(nothing, broken, 64);
  require(connection.info().peerPid == 0, "no process has pid 0");
}

void run(Input input) {
  transport();
  const DescriptorsKept kept;
  Transport::Context context;
  context.nonce = "0123456789abcdef";
  takes([&] {
    Offer answer;
    use(*transport().accept(context, someOffer(input, 2), answer));
    require(answer.fds.size() == 1, "the answer has our doorbell");
  });
  takes([&] {
    transport().offer(context);
    use(*transport().finish(context, someOffer(input, 1)));
  });
  transport().withdraw(context);
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
