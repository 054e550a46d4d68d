#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dlslime {

// Pauses the CPU for some cycles, between looks at memory to be changed by a
// second thread.
inline void relaxProcessor() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

} // namespace dlslime
