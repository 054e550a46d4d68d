#include "torch_ext/one_sided/window_part.h"

#include <limits>

#include "base/bytes.h"
#include "torch_ext/support/shared_tensors.h"
#include "torch_ext/support/tensor_view.h"

namespace dlslime {

namespace {

constexpr size_t kMostDimensions = 64;

// Returns the bytes of a tensor with the given sizes, or none if a size is
// negative or the product overflows.
std::optional<uint64_t> bytesOf(
    at::ScalarType dtype,
    const std::vector<int64_t>& sizes) {
  uint64_t bytes = at::elementSize(dtype);
  for (const auto size : sizes) {
    const bool fits = size >= 0 &&
        (size == 0 ||
         bytes <= std::numeric_limits<int64_t>::max() / uint64_t(size));
    if (!fits) {
      return std::nullopt;
    }
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(
      ErrorCode::kTransportFailed,
      "a peer's part of a window is refused: " + why);
}

} // namespace

WindowPart::WindowPart(RegionHandle handle, const at::Tensor& tensor)
    : region(std::move(handle)),
      dtype(tensor.scalar_type()),
      sizes(tensor.sizes().vec()) {
  if (const auto place = sharedPlaceOf(dlslime::bytesOf(tensor))) {
    memory = place->memory->describe();
    offset = place->offset;
  }
}

WindowPart::WindowPart(ByteSpan encoded) : dtype(at::ScalarType::Undefined) {
  ByteReader reader(encoded);
  region = decodeRegion(reader.blob());
  const auto type = reader.number<uint8_t>();
  sizes.resize(std::min<size_t>(reader.number<uint8_t>(), kMostDimensions));
  for (auto& size : sizes) {
    size = reader.number<int64_t>();
  }
  const auto description = reader.blob();
  memory.assign(description.begin(), description.end());
  offset = reader.number<uint64_t>();
  if (!reader.atEnd() ||
      type >= static_cast<uint8_t>(at::ScalarType::Undefined)) {
    refuse(std::to_string(encoded.size()) + " bytes that can't be decoded");
  }
  dtype = static_cast<at::ScalarType>(type);
  if (bytesOf(dtype, sizes) != region.size) {
    refuse("its sizes are not of " + std::to_string(region.size) + " bytes");
  }
}

Bytes WindowPart::encoded() const {
  ByteWriter writer;
  writer.blob(encode(region));
  writer.number(static_cast<uint8_t>(dtype));
  writer.number(static_cast<uint8_t>(sizes.size()));
  for (const auto size : sizes) {
    writer.number(size);
  }
  writer.blob(memory);
  writer.number(offset);
  return writer.take();
}

at::Tensor WindowPart::map(uint32_t pid) const {
  const auto segment = std::make_shared<const Segment>(mapShared(pid, memory));
  if (offset > segment->size() || region.size > segment->size() - offset) {
    refuse(
        "the part's " + std::to_string(region.size) + " bytes at offset " +
        std::to_string(offset) + " reach beyond the shared memory of " +
        std::to_string(segment->size()));
  }
  return at::from_blob(
      segment->data() + offset, sizes, [segment](void*) {}, dtype);
}

} // namespace dlslime
