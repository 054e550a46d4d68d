// A record of the handshake or of a store, or a record handed over by people;
// DECODE names the decoder.
#include "fuzz.h"
#include "records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dlslime;
  using namespace dlslime::fuzz;
  const auto bytes = std::as_bytes(std::span(data, size));
  takes([&] {
    const auto record = DECODE(bytes);
    check(record);
    // Decoding makes texts printable and cuts long texts; only a second round
    // gives a stable text, since the cut depends on the characters before.
    const Bytes once = encode(DECODE(encode(record)));
    require(encode(DECODE(once)) == once, "what is encoded is decoded to it");
  });
  return 0;
}
