#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace dlslime {

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

// Memory of this process that somebody else owns; see Operation for who
// keeps it alive.
struct MemoryView {
  std::byte* data = nullptr;
  size_t size = 0;
};

// Memory of the peer, as the peer's Connection named it. Only Connections of
// the same route know what the two numbers mean.
struct RemoteBuffer {
  uint64_t address = 0;
  uint32_t key = 0;
};

// memcpy that permits null pointers when there is nothing to copy: empty
// spans and the tensors of torch without elements have them.
inline void copyBytes(void* destination, const void* source, size_t size) {
  if (size != 0) {
    std::memcpy(destination, source, size);
  }
}

} // namespace dlslime
