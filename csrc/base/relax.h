#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dlslime {

// Between looks at memory that another thread will change.
inline void relaxProcessor() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

} // namespace dlslime
