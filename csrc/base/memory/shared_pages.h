#pragma once

#include <cstdint>
#include <string>

namespace dlslime {

// Where memory lies in a file that other processes may have mapped as well, or
// this one at another address: two that overlap there are the same pages.
struct SharedPages {
  std::string file; // the same in all processes of a host; empty: none
  uint64_t offset = 0; // bytes
};

// Of memory that is mapped. What lies in several files is taken for none. To
// read the table of mappings takes up to a millisecond: a burst of calls reads
// it once. Any thread.
SharedPages sharedPagesOf(const void* address, uint64_t size);
// Memory that was asked for may be unmapped from now on. Any thread.
void forgetMappings();

} // namespace dlslime
