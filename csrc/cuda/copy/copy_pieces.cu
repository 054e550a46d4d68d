// Copies many small pieces by one launch. A warp takes a piece at a time, so
// that thousands of them are under way at once. No thread waits for another:
// the fake driver of the tests runs this source as well, thread by thread.
//
// .ci/kernel makes copy_pieces_ptx.h of it.

#ifndef KERNEL_PRAGMA // the tests' compiler knows none
#define KERNEL_PRAGMA(text) _Pragma(#text)
#endif

struct dlslime_piece {
  unsigned long long to, from, size; // multiples of 16 bytes, not 0
};

extern "C" __global__ void dlslime_copy_pieces(
    const dlslime_piece* pieces,
    unsigned count) {
  const unsigned warp = 32, ahead = 8; // vectors that a thread has under way
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned lane = thread % warp;
  const unsigned warps = gridDim.x * blockDim.x / warp;
  for (unsigned i = thread / warp; i < count; i += warps) {
    const dlslime_piece piece = pieces[i];
    uint4* const to = reinterpret_cast<uint4*>(piece.to);
    const uint4* const from = reinterpret_cast<const uint4*>(piece.from);
    const unsigned long long vectors = piece.size / sizeof(uint4);
    unsigned long long at = lane;
    KERNEL_PRAGMA(unroll 1)
    for (; at + (ahead - 1) * warp < vectors; at += ahead * warp) {
      uint4 some[ahead];
      KERNEL_PRAGMA(unroll)
      for (unsigned j = 0; j < ahead; ++j) {
        some[j] = from[at + j * warp];
      }
      KERNEL_PRAGMA(unroll)
      for (unsigned j = 0; j < ahead; ++j) {
        to[at + j * warp] = some[j];
      }
    }
    KERNEL_PRAGMA(unroll 1)
    for (; at < vectors; at += warp) {
      to[at] = from[at];
    }
  }
}
