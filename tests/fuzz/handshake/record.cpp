// A record of the handshake, of a store, or of what people hand over: DECODE
// names its decoder.
#include "fuzz.h"
#include "records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dlslime;
  using namespace dlslime::fuzz;
  const auto bytes = std::as_bytes(std::span(data, size));
  takes([&] {
    const auto record = DECODE(bytes);
    check(record);
    // Texts are made printable and cut twice: where a cut text is cut again
    // depends on the characters before.
    const Bytes once = encode(DECODE(encode(record)));
    require(encode(DECODE(once)) == once, "what is encoded is decoded to it");
  });
  return 0;
}
