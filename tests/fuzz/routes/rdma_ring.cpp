// A peer that writes anything into the ring for messages over RDMA, with any
// immediate, after describing itself in any way. The network is in memory.
#include "fakes/verbs/fake_verbs.h"
#include "fuzz.h"
#include "transports/rdma/rdma_connection.h"

namespace dlslime {

// Replaces ring_memory.cpp, slower than all else together: the connections of
// all inputs use the same memory, one at a time.
rdma::RingMemory::RingMemory()
    : memory_([] {
        constexpr size_t kBytes = 2 * kRingBytes + kScratchBytes;
        static auto* const made =
            static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
        std::memset(made, 0, kBytes);
        return made;
      }()) {}
void rdma::RingMemory::Free::operator()(std::byte* /*memory*/) const {}

namespace fuzz {
namespace {

using namespace rdma;
using testing::FakeDevice;
using testing::FakeFabric;

constexpr size_t kMostSteps = 40;
constexpr size_t kOfferedBytes = kLeastPushed;

FakeDevice named(const char* name, uint8_t host) {
  FakeDevice device;
  device.name = name;
  device.ports[0].gids[0].value = testing::ipv4Gid(10, 9, 0, host);
  return device;
}

// Both NICs, and all objects that outlive an input.
struct Network {
  FakeFabric fabric{{named("ours", 1), named("theirs", 2)}};
  std::vector<NicPtr> nics = openNics(FakeFabric::verbs(), {}).nics;
  Bytes memory{kRingBytes}; // the peer's
  std::optional<MemoryRegion> region;
  std::optional<RailRegistrar> registrar;

  Network() {
    memory.resize(kRingBytes);
    for (const auto& nic : nics) {
      require(nic->refresh().ok(), "the NICs work");
    }
    region.emplace(nics[1]->domain(), MemoryView{memory.data(), memory.size()});
    registrar.emplace(std::vector<NicPtr>{nics[0]});
  }
};

Network& network() {
  static auto* const made = (checkLog(), new Network);
  return *made;
}

CompletionQueuePtr queueOn(const NicPtr& nic) {
  return std::make_shared<CompletionQueue>(
      nic->context(), nullptr, Rail::mostCompletions(*nic));
}

class Victim final : public ConnectionEvents {
 public:
  explicit Victim(Input from) : input(from) {
    auto memory = std::make_unique<RingMemory>();
    RdmaConnection::Rails rails;
    rails.push_back(std::make_unique<Rail>(
        0, 0, ours, queueOn(ours), *memory, RdmaConfig()));
    connection = std::make_unique<RdmaConnection>(
        std::move(memory), std::move(rails), [](const auto&) {
          return &*network().registrar;
        });
    place = connection->address();
    peer.connect(place.rails[0].pair);
    peer.postReceives(64);
    connection->connect(someAddress(), input.oneIn(2));
    offer();
  }
  void run() {
    for (size_t i = 0; i < kMostSteps && input.more(); ++i) {
      step();
    }
    connection->endPulls();
    poll();
  }

  void onMessage(const MessageHeader& header, ByteSpan payload) override {
    require(header.payloadSize == payload.size(), "a payload is whole");
    require(payload.size() <= connection->maxPayload(), "and no longer");
    const auto at = reinterpret_cast<uint64_t>(payload.data());
    require(
        at >= place.ring && at + payload.size() <= place.ring + kRingBytes,
        "it lies in the ring");
  }
  void onPulled(uint64_t, const Status&) override {}
  void onLanded(uint64_t id, uint16_t, size_t) override {
    require(id == 1 && offered, "only what is offered is written");
  }

 private:
  // Returns the peer's true address, or a made-up address.
  EndAddress someAddress() {
    EndAddress address;
    address.ring = reinterpret_cast<uint64_t>(network().memory.data());
    address.rails.push_back(
        {0, 0, peer.address(), network().region->remoteKey()});
    const auto blob = input.blob();
    return blob.empty() ? address : EndAddress::decode(blob);
  }
  void offer() {
    const MemoryView view{offeredMemory.get(), kOfferedBytes};
    prepared = network().registrar->prepare(view);
    offered = connection->pushing()->offer(1, view);
  }
  // Makes the peer write a record or anything, with an immediate or without.
  void write() {
    auto& memory = network().memory;
    MessageHeader header;
    header.type = MessageType::kEager;
    header.payloadSize =
        input.any<uint32_t>({0, 1000, 65536, ~0U, input.number<uint16_t>()});
    std::memcpy(memory.data(), &header, sizeof(header));
    const uint32_t units = input.below(kRingUnits);
    uint32_t immediate = position;
    if (input.oneIn(4)) {
      immediate = input.number<uint32_t>();
    } else if (input.oneIn(4)) { // a credit, perhaps for part of a message
      immediate = kCreditBit | (kFirstPosition + input.number<uint8_t>() % 64);
    } else if (input.oneIn(4)) {
      immediate = kPushBit | uint32_t{input.number<uint8_t>()} << 16;
    } else {
      position = (position + unitsOf(sizeof(header) + header.payloadSize)) &
          kPositionMask;
    }
    ibv_sge segment{};
    segment.addr = reinterpret_cast<uint64_t>(memory.data());
    segment.length = static_cast<uint32_t>(1 + input.below(2000));
    segment.lkey = network().region->localKey();
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.sg_list = &segment;
    request.num_sge = 1;
    request.imm_data = htobe32(immediate);
    const bool right = !input.oneIn(4);
    request.wr.rdma.remote_addr =
        place.ring + size_t{right ? immediate % kRingUnits : units} * kRingUnit;
    request.wr.rdma.rkey = place.rails[0].ringKey;
    int error = 0;
    peer.postSend(&request, error);
  }
  // Sends any contents, even contents like a header.
  void send() {
    MessageHeader header;
    header.type = MessageType::kEager;
    Bytes payload(input.below(5000), std::byte{input.number<uint8_t>()});
    if (connection->send(header, payload)) {
      sent.push_back(payload.size());
    }
  }
  void step() {
    switch (input.below(8)) {
      case 0:
        send();
        break;
      case 1:
        connection->pushing()->withdraw(1);
        offered.reset();
        break;
      case 2:
        confirm();
        break;
      case 3:
        poll();
        break;
      default:
        write();
    }
  }
  // Confirms with the input's bytes; nonsense drops the connection.
  void confirm() {
    connection->verifying()->confirm(copyOf(input.blob()));
  }
  void poll() {
    Status broken;
    connection->poll(*this, broken, 64);
    requirePlain(broken.message());
    ibv_wc completion{};
    while (completions->poll(&completion, 1) > 0) {
    }
    const auto waiting = connection->unconfirmed();
    require(waiting.size() <= sent.size(), "no message was made up");
    for (size_t i = 0; i < waiting.size(); ++i) {
      require(
          waiting[i].payload.size() == sent[sent.size() - waiting.size() + i],
          "what was sent last is what may be lost");
    }
  }

  Input input;
  const NicPtr ours = network().nics[0], theirs = network().nics[1];
  const CompletionQueuePtr completions = queueOn(theirs);
  QueuePair peer{theirs, completions, {600, 600, 0}, {}};
  std::unique_ptr<RdmaConnection> connection;
  EndAddress place; // told to the peer
  uint32_t position = kFirstPosition;
  const std::unique_ptr<std::byte[]> offeredMemory{
      new std::byte[kOfferedBytes]};
  RegistrationPtr prepared;
  std::optional<RemoteBuffer> offered;
  std::vector<size_t> sent; // payloads
};

} // namespace
} // namespace fuzz
} // namespace dlslime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dlslime::fuzz;
  takes([&] { Victim({data, size}).run(); });
  network().fabric.forgetSteps(); // else the steps would add up
  return 0;
}
