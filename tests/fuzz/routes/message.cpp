// Messages of a peer that sends anything, to a process with posted receives and
// sends, registered memory, and transfers under way. Operations with a
// different peer must not end, and only memory of operations under way may be
// touched: each operation has a heap allocation of its own, freed when the
// engine releases the operation.
#include "fakes/guarded_operation.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/scripted_connection.h"
#include "fakes/peers/test_transfer.h"
#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

using testing::Endpoint;
using testing::GuardedOperation;
using testing::GuardedPtr;
using testing::ScriptedConnection;
using testing::TestTransfer;

constexpr Outbound::Limits kLimits{1000, 50000};
constexpr size_t kRegionBytes = 6000;
constexpr size_t kMostSteps = 400;

// Rank 0 of three groups of four. Rank 1, the peer behind `bad`, is connected
// in one group; rank 2 behaves, and is connected in the two further groups.
class Victim {
 public:
  explicit Victim(Input from) : input(from) {
    good = connect(goodWire);
    bad = connect(badWire);
    group = join("shared", 2, good);
    other = join("other", 2, good);
    badGroup = join("bad", 1, bad);
    badWire->canPull = input.oneIn(2);
    badWire->setPushing(input.oneIn(2));
    for (const bool readOnly : {false, true}) {
      own.push_back(endpoint.regions.add(
          {memory.get(), kRegionBytes, nullptr, -1, nullptr, readOnly},
          "own",
          nullptr));
    }
    theirs.instance = Bytes(kInstanceBytes, std::byte{9});
    theirs.id = 3;
    theirs.address = 1 << 20;
    theirs.size = kRegionBytes;
    protectedOperations = {
        GuardedOperation::receive(2, 0, 500),
        GuardedOperation::send(2, 0, Bytes(5000)),
        GuardedOperation::receive(2, 1, 500)};
    group->post(protectedOperations[0]);
    group->post(protectedOperations[1]);
    other->post(protectedOperations[2]);
    endpoint.settle();
  }
  void run() {
    for (size_t i = 0; i < kMostSteps && input.more(); ++i) {
      step();
      endpoint.settle();
    }
    end();
  }

 private:
  std::shared_ptr<PeerChannel> connect(ScriptedConnection*& wire) {
    auto made = std::make_unique<ScriptedConnection>();
    wire = made.get();
    return endpoint.connect(std::move(made));
  }
  std::shared_ptr<Group> join(
      const char* name,
      int rank,
      const std::shared_ptr<PeerChannel>& channel) {
    auto made = endpoint.join(0, 4, 1, name);
    made->links().resolve(rank);
    made->linkReady(rank, channel, made->id() + 20);
    return made;
  }
  // Returns an id, mostly with a meaning for the victim.
  uint64_t someId() {
    std::vector<uint64_t> known{0, 1, 3, ~0ULL, 1ULL << 32, 2ULL << 32};
    for (const auto* const wire : {badWire, goodWire}) {
      for (const auto& header : wire->sent) {
        known.push_back(header.id);
        known.push_back(header.offset); // kStreamRequest's pull
      }
    }
    for (const auto& pull : badWire->pulls) {
      known.push_back(pull.id);
    }
    for (const auto& offer : badWire->offered) {
      known.push_back(offer.id);
    }
    for (const auto& region : own) {
      known.push_back(region->handle().id);
    }
    const auto at = input.number<uint8_t>();
    return at == 255 ? input.number<uint64_t>() : known[at % known.size()];
  }
  uint64_t someLength() {
    return input.any<uint64_t>(
        {0,
         1,
         16,
         500,
         1000,
         5000,
         kRegionBytes,
         100000,
         1ULL << 40,
         1ULL << 63,
         ~0ULL,
         input.number<uint16_t>()});
  }
  uint64_t secretOf(uint64_t id) {
    for (const auto& region : own) {
      if (region->handle().id == id) {
        return region->handle().secret;
      }
    }
    return 0;
  }
  MessageHeader someHeader() {
    MessageHeader header;
    const auto type = input.number<uint8_t>();
    header.type = static_cast<MessageType>(
        type >= 250 ? type : 1 + type % static_cast<int>(kLastMessageType));
    header.status = static_cast<FinishStatus>(input.below(12));
    const auto where = input.number<uint8_t>();
    header.group = where % 8 < 6 ? badGroup->id()
        : where % 8 == 6         ? group->id()
                                 : where / 8;
    header.source = where < 208 ? 1 : where % 8;
    header.tag = input.any<uint32_t>({0, 1, 2, 0x7fffffff, ~0U});
    header.length = someLength();
    header.id = someId();
    header.offset = input.oneIn(2) ? someLength() : someId();
    header.address = header.type == MessageType::kResolve && !input.oneIn(8)
        ? secretOf(header.id)
        : input.number<uint32_t>();
    header.slot = input.any<uint16_t>({0, 1, 0xfffe, 0xffff});
    header.key = input.number<uint8_t>();
    return header;
  }
  // Returns pieces of the victim's memory, as in kGetRequest and kPut, bytes of
  // the input, and further bytes behind.
  Bytes somePayload() {
    ByteWriter payload;
    for (auto pieces = input.below(6); pieces > 0; --pieces) {
      payload.number(someLength());
      payload.number(someLength());
    }
    payload.raw(input.upTo(input.below(128)));
    payload.raw(Bytes(input.any<size_t>({0, 0, 1, 500, 1000, 5000, 64000})));
    return payload.take();
  }
  void inject() {
    auto header = someHeader();
    const Bytes payload = somePayload();
    header.payloadSize = static_cast<uint32_t>(payload.size());
    header.sequence = input.oneIn(32) ? input.number<uint8_t>() : ++sequence;
    bad->events().onMessage(header, payload);
  }
  void post() {
    const auto what = input.below(6);
    const auto size = input.any<size_t>({0, 1, 500, 1000, 1001, 5000});
    const auto tag = static_cast<uint32_t>(input.below(4));
    if (what < 2) {
      posted.push_back(GuardedOperation::send(1, tag, Bytes(size)));
    } else if (what < 5) {
      const int from = what == 4 ? Operation::kAnySource : 1;
      posted.push_back(GuardedOperation::receive(from, tag, size));
    } else {
      transfer(static_cast<int64_t>(size));
      return;
    }
    badGroup->post(posted.back());
  }
  void transfer(int64_t size) {
    const bool write = input.oneIn(2);
    const auto made = write
        ? TestTransfer::writeTo(
              1, own[0], theirs, {{0, 0, size}, {5500, 5500, 100}})
        : TestTransfer::readFrom(
              1, own[0], theirs, {{0, 0, size}, {5500, 5500, 100}});
    if (write && input.oneIn(2)) {
      made->note = GuardedOperation::send(1, 3, Bytes(4));
    }
    transfers.push_back(made);
    badGroup->post(made);
  }
  // Ends a pull: the route has written all of the memory, or reports a failure.
  void endSomePull() {
    if (badWire->pulls.empty()) {
      return;
    }
    const auto at = input.below(badWire->pulls.size());
    const auto pull = badWire->pulls[at];
    badWire->pulls.erase(badWire->pulls.begin() + static_cast<long>(at));
    if (pull.destination.size != 0) {
      std::memset(pull.destination.data, 0x55, pull.destination.size);
    }
    const bool fails = pull.abandoned || input.oneIn(4);
    bad->events().onPulled(pull.id, fails ? broken : Status());
  }
  // Writes into offered memory, or claims to have written.
  void land() {
    uint64_t id = someId();
    size_t length = someLength();
    if (!badWire->offered.empty() && !input.oneIn(4)) {
      const auto& offer =
          badWire->offered[input.below(badWire->offered.size())];
      id = offer.id;
      length = input.oneIn(8) ? length : offer.view.size;
      std::memset(offer.view.data, 0x66, offer.view.size);
    }
    bad->events().onLanded(id, static_cast<uint16_t>(++sequence), length);
  }
  void endSomePush() {
    if (badWire->pushes.empty()) {
      return;
    }
    const auto push = badWire->pushes.back();
    badWire->pushes.pop_back();
    const volatile auto first = *push.source.data; // must be alive
    static_cast<void>(first);
    bad->events().onPushed(push.id, input.oneIn(4) ? broken : Status());
  }
  template <typename Operations>
  void cancelSome(const Operations& operations) {
    if (!operations.empty()) {
      endpoint.cancel(
          *badGroup, operations[input.below(operations.size())], broken);
    }
  }
  void step() {
    switch (input.below(16)) {
      case 0:
      case 1:
        post();
        break;
      case 2:
        endSomePull();
        break;
      case 3:
        badWire->full = input.oneIn(3);
        bad->poll();
        endpoint.answerJoins();
        break;
      case 4:
        input.oneIn(4) ? cancelSome(transfers) : cancelSome(posted);
        break;
      case 5:
        land();
        break;
      case 6:
        endSomePush();
        break;
      case 7:
        bad->parts()->target.recall(*own[input.below(own.size())]);
        break;
      default:
        inject();
    }
    if (badWire->sent.size() > 200) {
      badWire->sent.erase(badWire->sent.begin(), badWire->sent.begin() + 150);
    }
  }
  template <typename Operations>
  static void requireEnded(const Operations& operations) {
    for (const auto& operation : operations) {
      require(operation->ends() == 1, "every operation ends once");
      require(operation->releases() == 1, "and its memory is released once");
      requirePlain(operation->status().message());
    }
  }
  void end() {
    bad->fail(broken);
    require(badWire->offered.empty(), "no memory is offered any more");
    while (!badWire->pulls.empty()) {
      endSomePull();
    }
    while (!badWire->pushes.empty()) {
      endSomePush();
    }
    endpoint.settle();
    require(bad->idle(), "a channel that has failed has nothing to do");
    badGroup->close(broken);
    endpoint.settle();
    requireEnded(posted);
    requireEnded(transfers);
    for (const auto& region : own) {
      require(!region->lent() && region->uses == 0, "memory comes back");
    }
    for (const auto& operation : protectedOperations) {
      require(!operation->done(), "what is of others goes on");
    }
    require(good->open(), "so does their connection");
    require(
        group->link(2).state == Group::LinkState::kReady &&
            other->link(2).channel == good,
        "and the way to them");
  }

  Input input;
  const Status broken{ErrorCode::kPeerFailed, "over"};
  const std::unique_ptr<std::byte[]> memory{new std::byte[kRegionBytes]()};
  Endpoint endpoint{kLimits};
  ScriptedConnection* goodWire = nullptr;
  ScriptedConnection* badWire = nullptr;
  std::shared_ptr<PeerChannel> good, bad;
  std::shared_ptr<Group> group, other, badGroup;
  std::vector<RegionPtr> own;
  RegionHandle theirs;
  std::vector<GuardedPtr> protectedOperations, posted;
  std::vector<testing::TestTransferPtr> transfers;
  uint64_t sequence = 0;
};

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool checking = (dlslime::fuzz::checkLog(), true);
  static_cast<void>(checking);
  dlslime::fuzz::Victim({data, size}).run();
  return 0;
}
