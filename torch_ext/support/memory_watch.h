#pragma once

#include <c10/core/Storage.h>

#include <functional>

namespace dlslime {

// Has `ended` called just before this storage's memory is freed, by whatever
// frees it: the storage's end, resize_(0), share_memory_(). False: the memory
// is not of torch's default CPU allocator; whoever made it may unmap it any
// time. Any thread; holds for the memory, not for the storage.
bool watchEnd(const c10::Storage& storage, std::function<void()> ended);

// The memory is of torch's default CPU allocator: it stays mapped and writable
// for as long as the storage has it.
bool isOfAllocator(const c10::Storage& storage);

} // namespace dlslime
