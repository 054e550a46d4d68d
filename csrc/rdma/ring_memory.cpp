#include "rdma/ring_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace dlslime::rdma {

namespace {

constexpr size_t kPage = 4096;

std::byte* allocate() {
  auto* const memory = std::aligned_alloc(kPage, 2 * kRingBytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(memory, 0, 2 * kRingBytes);
  return static_cast<std::byte*>(memory);
}

} // namespace

void RingMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

RingMemory::RingMemory() : memory_(allocate()) {}

} // namespace dlslime::rdma
