// Messages between the ranks of a message store.
#include "fuzz.h"
#include "torch_ext/store/store_messages.h"

namespace dlslime {

// Replaces the engine's function for texts of time-outs.
std::string Engine::describeLink(Group&, const Operation&) {
  return "";
}

} // namespace dlslime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dlslime;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto message = decodeStoreMessage(bytes);
  if (message) {
    fuzz::require(
        message->offset <= message->total &&
            message->part.size() <= message->total - message->offset,
        "a part lies in its value");
    fuzz::require(
        *encode(*message) == fuzz::copyOf(bytes), "there is one way to say it");
  }
  return 0;
}
