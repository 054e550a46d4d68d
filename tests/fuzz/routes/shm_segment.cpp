// A second process of the host that writes anything into the shared memory:
// rings, copy desks, and the words beside. No copy between processes is made,
// but each copy is checked: the local bytes must be of an operation under way,
// since the peer decides the rest.
#include "transports/shm/shm_connection.h"

#include "descriptors.h"
#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

using shm::Layout;
using shm::ShmConnection;

constexpr size_t kRingBytes = 1 << 14;
constexpr size_t kSegmentBytes = shm::segmentBytes(kRingBytes);
constexpr size_t kMostSteps = 300;

// Returns the file for all inputs, mapped anew by each.
UniqueFd sharedFile() {
  static const auto* const made = new Segment(Segment::create(kSegmentBytes));
  return made->duplicateFd();
}
shm::Doorbell& doorbell() { // the peer's
  static auto* const made = new shm::Doorbell();
  return *made;
}

// Local memory that the connection may have copied.
struct Block {
  uint64_t id = 0;
  std::unique_ptr<std::byte[]> bytes;
  size_t size = 0;
};

class Victim final : public ConnectionEvents {
 public:
  explicit Victim(Input from) : input(from), segment(map()) {
    std::memset(segment.data(), 0, segment.size());
    const bool granted = input.oneIn(2);
    connection.emplace(
        ShmConnection::Ends{
            map(),
            shm::RemoteDoorbell(doorbell().duplicatePage()),
            kRingBytes,
            0x7fffffff,
            1},
        granted);
    peer.emplace(layout().ring[0], ring(), kRingBytes);
  }
  void run() {
    for (size_t i = 0; i < kMostSteps && input.more(); ++i) {
      step();
    }
    end();
  }

  void onMessage(const MessageHeader& header, ByteSpan payload) override {
    require(header.payloadSize == payload.size(), "a payload is whole");
    require(payload.size() <= connection->maxPayload(), "and no longer");
    const volatile auto* const bytes = payload.data();
    for (size_t i = 0; i < payload.size(); ++i) {
      static_cast<void>(bytes[i]); // must be readable
    }
  }
  void onPulled(uint64_t id, const Status& status) override {
    requirePlain(status.message());
    require(
        std::erase_if(
            pulls, [id](const auto& pull) { return pull.id == id; }) == 1,
        "each pull ends once");
  }

 private:
  static Segment map() {
    return Segment::adopt(sharedFile(), kSegmentBytes);
  }
  Layout& layout() const {
    return *reinterpret_cast<Layout*>(segment.data());
  }
  std::byte* ring() const { // written by the peer
    return segment.data() + shm::kLayoutBytes;
  }
  // Sends a proper record, so that later bytes are looked at, too.
  void sendRecord() {
    MessageHeader header;
    header.type = static_cast<MessageType>(1 + input.below(30));
    static_cast<void>(peer->push(header, input.blob()));
  }
  void scribble() {
    const size_t at = input.oneIn(2) ? input.below(sizeof(Layout))
                                     : input.below(kSegmentBytes);
    const auto bytes = input.upTo(1 + input.below(64));
    copyBytes(
        segment.data() + at,
        bytes.data(),
        std::min(bytes.size(), kSegmentBytes - at));
  }
  // Writes a header into the ring, or changes a position of the ring.
  void scribbleRing() {
    auto& control = layout().ring[input.below(2)];
    const auto value = input.any<uint64_t>(
        {input.number<uint8_t>() * uint64_t{64},
         kRingBytes,
         kRingBytes - 64,
         ~0ULL,
         input.number<uint64_t>()});
    input.oneIn(2) ? control.tail.store(value) : control.head.store(value);
    MessageHeader header;
    header.type = static_cast<MessageType>(input.below(4));
    header.payloadSize = input.any<uint32_t>(
        {0, 64, kRingBytes / 4, kRingBytes, ~0U, input.number<uint16_t>()});
    std::memcpy(
        ring() + input.below(kRingBytes / 64) * 64, &header, sizeof(header));
  }
  void openDesk() {
    auto& desk = layout().desk[input.below(2)][input.below(shm::kDesks)];
    const uint64_t id = input.oneIn(4) || exposed.empty()
        ? input.number<uint64_t>()
        : exposed[input.below(exposed.size())].id;
    const uint64_t length = input.oneIn(4) || exposed.empty()
        ? input.number<uint64_t>()
        : exposed[input.below(exposed.size())].size;
    shm::openDesk(desk, id, input.number<uint64_t>(), 1 + length % (1 << 20));
    desk.length.store(length);
    if (input.oneIn(2)) {
      desk.word.store(input.number<uint64_t>());
    }
    if (input.oneIn(4)) {
      desk.error.store(input.number<uint32_t>());
      desk.done.store(input.number<uint32_t>());
    }
  }
  Block makeBlock() {
    Block block;
    block.id = ++nextId << 32 | exposed.size();
    block.size = input.any<size_t>({1, 100, 5000, 9000, 100000});
    block.bytes.reset(new std::byte[block.size]());
    return block;
  }
  void expose() {
    exposed.push_back(makeBlock());
    const auto& block = exposed.back();
    connection->expose(block.id, {block.bytes.get(), block.size});
  }
  void unexpose() {
    if (!exposed.empty() && jobs.empty()) {
      connection->unexpose(exposed.back().id);
      exposed.pop_back();
    }
  }
  void pull() {
    doorbell().setAsleep(!input.oneIn(4)); // awake peers may stream
    auto block = makeBlock();
    block.id = ++nextId;
    const MemoryView view{block.bytes.get(), block.size};
    pulls.push_back(std::move(block));
    if (!connection->pull(
            pulls.back().id, input.number<uint64_t>(), {}, view)) {
      pulls.pop_back();
    }
  }
  static bool holds(const std::vector<Block>& blocks, const CopyJob& job) {
    return std::any_of(blocks.begin(), blocks.end(), [&](const Block& block) {
      return job.local >= block.bytes.get() &&
          job.local + job.size <= block.bytes.get() + block.size;
    });
  }
  void claim() {
    CopyJob job;
    if (!connection->claimCopy(job)) {
      return;
    }
    require(
        holds(exposed, job) || holds(pulls, job),
        "a copy lies in memory that goes on");
    std::memset(job.local, 0x55, job.size);
    jobs.push_back(job);
  }
  void finish() {
    if (jobs.empty()) {
      return;
    }
    auto job = jobs.back();
    jobs.pop_back();
    job.error = input.any<int>({0, 0, 0, 1, 3, 14, 38, input.number<int>()});
    connection->finishCopy(job);
  }
  bool poll() {
    Status broken;
    const bool any = connection->poll(*this, broken, 8);
    requirePlain(broken.message());
    return any && broken.ok();
  }
  void step() {
    switch (input.below(16)) {
      case 0:
      case 1:
        return sendRecord();
      case 2:
        return scribble();
      case 3:
        return scribbleRing();
      case 4:
        return openDesk();
      case 5:
        return expose();
      case 6:
        return unexpose();
      case 7:
        return pull();
      case 8:
        return pulls.empty() ? void() : connection->abandon(pulls.back().id);
      case 9:
      case 10:
        return claim();
      case 11:
        return finish();
      case 12:
        connection->trim();
        connection->endsSoon();
        return;
      case 13:
        static_cast<void>(connection->send({}, input.blob()));
        return;
      default:
        poll();
    }
  }
  void end() {
    connection->endPulls();
    while (!jobs.empty()) {
      finish();
    }
    for (int i = 0; i < 4; ++i) {
      poll();
    }
    require(pulls.empty(), "every pull ends with its connection");
  }

  Input input;
  Segment segment; // the peer's mapping
  std::vector<Block> exposed, pulls;
  std::vector<CopyJob> jobs;
  uint64_t nextId = 0;
  std::optional<ShmConnection> connection;
  std::optional<shm::RingProducer> peer;
};

void run(const uint8_t* data, size_t size) {
  sharedFile();
  doorbell();
  const DescriptorsKept kept;
  Victim({data, size}).run();
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool checking = (dlslime::fuzz::checkLog(), true);
  static_cast<void>(checking);
  dlslime::fuzz::run(data, size);
  return 0;
}
