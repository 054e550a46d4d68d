// The address of an endpoint or of a hub, handed over by people. The engine
// only records calls.
#include "engine/endpoint.h"
#include "engine/bootstrap/wire_records.h"

#include "base/random.h"
#include "engine/peer/group_registry.h"
#include "fuzz.h"

namespace dlslime {
namespace {

// The engine's state, as far as endpoints use the engine.
struct RecordingEngine {
  Completions completions;
  GroupRegistry groupRegistry{completions, [] {}};
  AddressRecord own;
  int paired = 0;
};

RecordingEngine& recording() {
  static auto* const made = [] {
    auto* const fresh = new RecordingEngine;
    fresh->own.identity = makeIdentity();
    fresh->own.token = Bytes(32, std::byte{1});
    fresh->own.socketName = "dlslime-0123456789abcdef";
    return fresh;
  }();
  return *made;
}

} // namespace

// Replaces the engine's own functions.
std::shared_ptr<Group> Engine::join(GroupOptions options) {
  options.rendezvous->set(addressKey(options.rank), encode(recording().own));
  return recording().groupRegistry.add(1, std::move(options));
}
void Engine::leave(Group& group) {
  recording().groupRegistry.remove(group);
}
void Engine::pair(
    Group& group,
    int rank,
    const AddressRecord& record,
    Group& /*spare*/) {
  fuzz::require(rank == 1 - group.rank(), "the peer is the other rank");
  fuzz::require(
      record.identity.instance.size() == kInstanceBytes, "it is a record");
  ++recording().paired;
}

namespace fuzz {
namespace {

void connectTo(Endpoint& endpoint, ByteSpan address) {
  const int before = recording().paired;
  const bool taken = takes([&] { endpoint.connect(address); });
  require(
      recording().paired == before + (taken ? 1 : 0),
      "an address that is taken is paired once");
  if (taken) {
    require(takes([&] { endpoint.connect(address); }), "twice is no harm");
    require(endpoint.peer() == 1 - endpoint.group()->rank(), "of two");
  }
}

// Returns a pointer to no engine: the members called do not use the object.
std::shared_ptr<Engine> noEngine() {
  alignas(Engine) static std::byte place[sizeof(Engine)] = {};
  return {std::shared_ptr<void>(), reinterpret_cast<Engine*>(place)};
}

void run(ByteSpan bytes) {
  Endpoint endpoint(noEngine(), {});
  require(
      !takes([&] { endpoint.connect(endpoint.address()); }),
      "an endpoint has no connection with itself");
  connectTo(endpoint, bytes);
}

} // namespace
} // namespace fuzz
} // namespace dlslime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
