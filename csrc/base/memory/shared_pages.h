#pragma once

#include <cstdint>
#include <string>

#include "base/library/api.h"

namespace dlslime {

// Place of memory in a file. A file may be mapped by several processes, or at
// several addresses: ranges overlapping in the file are the same pages.
struct SharedPages {
  std::string file; // common to all processes of a host; empty: none
  uint64_t offset = 0; // bytes
};

// Returns the place of mapped memory; memory in several files counts as in
// none. Reading the table of mappings takes up to a millisecond, so a burst of
// calls reads the table once. Any thread.
DLSLIME_API SharedPages sharedPagesOf(const void* address, uint64_t size);
// Forgets the table of mappings: memory asked for before may be unmapped from
// now on. Any thread.
void forgetMappings();

} // namespace dlslime
