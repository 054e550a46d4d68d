#pragma once

#include <cstddef>

namespace dlslime {

// Copies past the core's cache, for memory read next by a different core, or
// not read soon. A dirty line in a cache costs the reading core about 30 ns
// where the cores share no cache (measured: 64 KiB through the ring take 31 us
// with memcpy, 5 us with streamCopy), and a line not written whole is read
// first. The stores are weakly ordered: call publishStores() before the store
// that publishes the bytes.
void streamCopy(std::byte* destination, const std::byte* source, size_t size);
// Orders the stores of streamCopy() before all later stores.
void publishStores();

} // namespace dlslime
