#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/unique_fd.h"
#include "fuzz.h"

namespace dlslime::fuzz {

// Returns the lowest free number: equal before and after an input, unless a
// descriptor was left open or closed twice.
inline int lowestDescriptor() {
  return UniqueFd(fcntl(0, F_DUPFD_CLOEXEC, 0)).get();
}

class DescriptorsKept {
 public:
  DescriptorsKept() : before_(lowestDescriptor()) {}
  ~DescriptorsKept() {
    require(lowestDescriptor() == before_, "every descriptor was closed");
  }
  DescriptorsKept(const DescriptorsKept&) = delete;
  DescriptorsKept& operator=(const DescriptorsKept&) = delete;

 private:
  const int before_;
};

inline UniqueFd memoryFile(size_t size, int seals) {
  UniqueFd made(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(
      made && ftruncate(made.get(), static_cast<off_t>(size)) == 0,
      "there is memory");
  fcntl(made.get(), F_ADD_SEALS, seals);
  return made;
}

} // namespace dlslime::fuzz
