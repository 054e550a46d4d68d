#pragma once

#include "base/memory/guarded_copy.h"
#include "interface/memory.h"

namespace dlslime {

// Reads part of a view, guarded against faults if the view may fault.
inline GuardedBytes
readView(const MemoryView& view, size_t offset, size_t size) {
  return view.mayFault ? readGuarded(view.data + offset, size)
                       : GuardedBytes{{view.data + offset, size}};
}

} // namespace dlslime
