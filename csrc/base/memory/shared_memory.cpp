#include "base/memory/shared_memory.h"

namespace dlslime {

Bytes SharedMemory::describe() const {
  const auto proof = descriptor_.proof();
  ByteWriter writer;
  writer.number(static_cast<uint64_t>(segment_.size()));
  writer.number(static_cast<int32_t>(descriptor_.number()));
  writer.number(proof.address);
  writer.number(proof.word);
  return writer.take();
}

Segment mapShared(uint32_t pid, ByteSpan description) {
  ByteReader reader(description);
  const auto size = reader.number<uint64_t>();
  const auto number = reader.number<int32_t>();
  DescriptorProof proof;
  proof.address = reader.number<uint64_t>();
  proof.word = reader.number<uint64_t>();
  if (!reader.atEnd() || size == 0 || number < 0) {
    throw Error(
        ErrorCode::kTransportFailed,
        "process " + std::to_string(pid) + " describes its shared memory by " +
            std::to_string(description.size()) +
            " bytes that can't be decoded");
  }
  auto segment = Segment::adopt(
      fetchDescriptor(pid, number, proof), static_cast<size_t>(size));
  segment.takeFd()
      .reset(); // mapped memory needs no descriptor, and descriptors are few
  return segment;
}

} // namespace dlslime
