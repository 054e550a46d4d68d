// A peer's part of a window of torch's. One file with its decoder, since
// torch's headers take longer to compile than all else.
#include "torch_ext/one_sided/window_part.cpp" // NOLINT

#include "fuzz.h"

namespace dlslime {

// In place of shared_tensors.cpp's and tensor_view.cpp's: nothing is shared.
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
    fuzz::require(!fuzz::takes([&] { part.map(0); }), "nobody is behind pid 0");
  });
  return 0;
}
