#pragma once

#include "base/bytes.h"
#include "base/library/api.h"
#include "base/memory/segment.h"
#include "base/memory/shared_descriptor.h"

namespace dlslime {

// Memory of the process, mapped by peers on the host from a description. The
// pages last until the last process has unmapped them.
class DLSLIME_API SharedMemory {
 public:
  // Makes memory filled with zeros. Throws Error.
  explicit SharedMemory(size_t size)
      : segment_(Segment::create(size)), descriptor_(segment_.takeFd()) {}

  std::byte* data() const {
    return segment_.data();
  }
  size_t size() const {
    return segment_.size();
  }
  // Returns the description for mapShared(), valid while the object lives.
  Bytes describe() const;

 private:
  Segment segment_;
  const SharedDescriptor descriptor_;
};

// Maps the memory described by process `pid` (0: unknown). Throws Error with
// the reason if the description is invalid or the memory can't be had.
DLSLIME_API Segment mapShared(uint32_t pid, ByteSpan description);

} // namespace dlslime
