#pragma once

#include <c10/core/Storage.h>

#include <functional>

namespace dlslime {

// Has `ended` called just before the memory is freed, by the storage's end,
// resize_(0) or share_memory_(). Returns false if the memory is not from
// torch's default CPU allocator: the owner may then unmap the memory at any
// time. Watches the memory, not the storage. Any thread.
bool watchEnd(const c10::Storage& storage, std::function<void()> ended);

// Whether the memory is from torch's default CPU allocator, and so stays mapped
// and writable as long as the storage has the memory.
bool isOfAllocator(const c10::Storage& storage);

} // namespace dlslime
