#pragma once

#include <cstddef>

namespace dlslime::shm {

// Copies into memory that another core reads next, past this core's cache:
// a dirty line in our cache costs the reader about 30 ns each on machines
// whose cores share no cache (measured: 64 KiB through the ring 31 us with
// memcpy, 5 us this way). The stores are weakly ordered: publishStores()
// before the store that publishes them.
//
// `destination` is aligned to 64 bytes and padded to a multiple of 64, so the
// copy may write up to the next multiple.
void streamCopy(std::byte* destination, const std::byte* source, size_t size);
void publishStores();

} // namespace dlslime::shm
