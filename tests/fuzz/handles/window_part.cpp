// A peer's part of a window of torch's. Includes the decoder, since compiling
// torch's headers takes longer than all else.
#include "torch_ext/one_sided/window_part.cpp" // NOLINT

#include "fuzz.h"

namespace dlslime {

// Replaces shared_tensors.cpp and tensor_view.cpp, and shares nothing.
std::optional<SharedPlace> sharedPlaceOf(const MemoryView& /*view*/) {
  return std::nullopt;
}
MemoryView bytesOf(const at::Tensor& /*tensor*/, MemoryOwner* /*owner*/) {
  return {};
}

} // namespace dlslime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dlslime;
  const auto bytes = std::as_bytes(std::span(data, size));
  fuzz::takes([&] {
    const WindowPart part(bytes);
    uint64_t expected = at::elementSize(part.dtype);
    for (const auto length : part.sizes) {
      fuzz::require(length >= 0, "no length is negative");
      expected *= static_cast<uint64_t>(length);
    }
    fuzz::require(expected == part.region.size, "its sizes are of its bytes");
    const auto once = WindowPart(part.encoded()).encoded();
    fuzz::require(WindowPart(once).encoded() == once, "it is told one way");
    fuzz::require(!fuzz::takes([&] { part.map(0); }), "no process has pid 0");
  });
  return 0;
}
