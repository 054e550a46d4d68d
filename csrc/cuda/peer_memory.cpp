#include "cuda/peer_memory.h"

#include <cstring>

#include "core/bytes.h"

namespace dlslime::cuda {

namespace {
template <typename Array>
ByteSpan bytesOf(const Array& array) {
  return std::as_bytes(std::span(array));
}
} // namespace

Bytes encode(const ExportedAllocation& exported) {
  ByteWriter writer;
  writer.number(exported.id);
  writer.number(exported.base);
  writer.number(exported.size);
  writer.blob(bytesOf(exported.handle.bytes));
  writer.blob(bytesOf(exported.gpu.bytes));
  return writer.take();
}

ExportedAllocation decodeAllocation(ByteSpan bytes) {
  ByteReader reader(bytes);
  ExportedAllocation exported;
  exported.id = reader.number<uint64_t>();
  exported.base = reader.number<uint64_t>();
  exported.size = reader.number<uint64_t>();
  const auto handle = reader.blob();
  const auto gpu = reader.blob();
  if (!reader.atEnd() || handle.size() != sizeof(exported.handle.bytes) ||
      gpu.size() != sizeof(exported.gpu.bytes)) {
    throw Error(
        ErrorCode::kTransportFailed,
        "what a peer says of its GPU memory can't be read: " +
            std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(exported.handle.bytes, handle.data(), handle.size());
  std::memcpy(exported.gpu.bytes, gpu.data(), gpu.size());
  return exported;
}

void PeerMemory::move(
    int device,
    ByteSpan shared,
    bool write,
    std::span<const Piece> pieces,
    Accelerator::Done done) {
  auto mapping = mapped_.of(gpuOf_(device), decodeAllocation(shared));
  std::vector<Copy> copies;
  copies.reserve(pieces.size());
  for (const auto& piece : pieces) {
    const auto here = reinterpret_cast<DevicePointer>(piece.local);
    const auto there = mapping->at(piece.remote, piece.size);
    copies.push_back(
        write ? Copy{there, here, piece.size} : Copy{here, there, piece.size});
  }
  // Mapped until the copies are over, whatever the peer says meanwhile.
  start_(
      device, copies, [mapping, done = std::move(done)](const Status& status) {
        done(status);
      });
}

} // namespace dlslime::cuda
