#pragma once

#include "base/bytes.h"
#include "base/memory/segment.h"
#include "base/memory/shared_descriptor.h"

namespace dlslime {

// Memory of this process that others of this host map by what they are told of
// it. It lasts until the last of them has let go of it.
class SharedMemory {
 public:
  // Zeros. Throws Error.
  explicit SharedMemory(size_t size)
      : segment_(Segment::create(size)), descriptor_(segment_.takeFd()) {}

  std::byte* data() const {
    return segment_.data();
  }
  size_t size() const {
    return segment_.size();
  }
  // For mapShared(), as long as this is there.
  Bytes describe() const;

 private:
  Segment segment_;
  const SharedDescriptor descriptor_;
};

// What process `pid` has described; 0: it is unknown. Throws Error: it is not
// that, or can't be had, and why.
Segment mapShared(uint32_t pid, ByteSpan description);

} // namespace dlslime
