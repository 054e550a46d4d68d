#include "transports/rdma/rail/ring_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace dlslime::rdma {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAllBytes = 2 * kRingBytes + kPage;
static_assert(kScratchBytes <= kPage);

std::byte* allocate() {
  auto* const memory = std::aligned_alloc(kPage, kAllBytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(memory, 0, kAllBytes);
  return static_cast<std::byte*>(memory);
}

} // namespace

void RingMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

RingMemory::RingMemory() : memory_(allocate()) {}

} // namespace dlslime::rdma
