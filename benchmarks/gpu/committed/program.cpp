#include "committed/program.h"

#include <algorithm>

namespace committed {

using namespace dlslime::cuda;

Spinner::Spinner(const std::string& ptx) {
  Module module = nullptr;
  CALL(moduleLoad, &module, ptx.c_str());
  CALL(moduleFunction, &function_, module, "dlslime_spin");
}

void Spinner::spin(Stream stream, DevicePointer word, double milliseconds)
    const {
  uint32_t value = 1U << 30; // reached by no word
  auto limit = static_cast<uint64_t>(milliseconds * 1e6);
  void* parameters[] = {&word, &value, &limit};
  CALL(launch, function_, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
}

Stream makeStream() {
  Stream stream = nullptr;
  CALL(streamCreate, &stream, kStreamNonBlocking, 0);
  return stream;
}

void settle(Stream stream) {
  CALL(streamSynchronize, stream);
}

void fill(Rank& rank, uint32_t offset, uint32_t size, uint8_t value) {
  static const Stream stream = makeStream();
  const std::vector<uint8_t> bytes(size, value);
  CALL(
      copy,
      rank.memory() + offset,
      reinterpret_cast<DevicePointer>(bytes.data()),
      size,
      stream);
  settle(stream);
}

void verify(Rank& rank, uint32_t offset, uint32_t size, uint8_t value) {
  static const Stream stream = makeStream();
  std::vector<uint8_t> bytes(size);
  CALL(
      copy,
      reinterpret_cast<DevicePointer>(bytes.data()),
      rank.memory() + offset,
      size,
      stream);
  settle(stream);
  const bool right = std::all_of(
      bytes.begin(), bytes.end(), [&](uint8_t each) { return each == value; });
  if (!right) {
    throw std::runtime_error("bytes that were not sent");
  }
}

} // namespace committed
