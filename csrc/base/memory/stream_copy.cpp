#include "base/memory/stream_copy.h"

#include <cstdint>

#include "base/bytes.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dlslime {

#if defined(__SSE2__)

namespace {
// Smallest copy in bytes to stream: below, setting up the write-combining
// buffers costs more than streaming saves.
constexpr size_t kLeastStreamed = 512;
constexpr size_t kLine = 64;
} // namespace

void streamCopy(std::byte* destination, const std::byte* source, size_t size) {
  if (size < kLeastStreamed) {
    copyBytes(destination, source, size);
    return;
  }
  const size_t past = reinterpret_cast<uintptr_t>(destination) % kLine;
  const size_t head = past == 0 ? 0 : kLine - past;
  copyBytes(destination, source, head);
  destination += head;
  source += head;
  size -= head;
  const size_t whole = size / kLine * kLine;
  for (size_t at = 0; at < whole; at += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* to = reinterpret_cast<__m128i*>(destination + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  copyBytes(destination + whole, source + whole, size - whole);
}

void publishStores() {
  _mm_sfence();
}

#else

void streamCopy(std::byte* destination, const std::byte* source, size_t size) {
  copyBytes(destination, source, size);
}

void publishStores() {}

#endif

} // namespace dlslime
