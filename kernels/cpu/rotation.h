// The rotation under which an int8 pool holds keys and values: a Walsh-Hadamard transform of each head, scaled to keep lengths.
//
// A few channels of a key are much larger than the rest, and one scale for a head would be theirs. Rotated, every channel has
// a share of them. Products of rotated queries and keys are those of the plain ones; a weighted sum of rotated values is turned
// back once, at the end: the transform is its own inverse. Same definition as kernels/rotate_heads.py.
#pragma once

#include "vec.h"

namespace ramet {

// v[i] +- v[i ^ stride]: plus where i has no bit `stride`.
INLINE f32x16 butterfly(f32x16 v, int stride) {
  const i32x16 partner = lane_index() ^ stride;
  const f32x16 signs = select((lane_index() & stride) == 0, splat(1.0f), splat(-1.0f));
#if defined(__GNUC__) && !defined(__clang__)
  return v * signs + __builtin_shuffle(v, partner);
#else
  f32x16 other;
  for (int i = 0; i < LANES; i++) other[i] = v[partner[i]];
  return v * signs + other;
#endif
}

// One head [D], in place; D is a multiple of 16. Blocks are as long as the largest power of two that divides `stored`, the head's
// own size; what lies behind that is zero and stays so.
static inline void rotate_head(float* x, int D, int stored) {
  const int block = stored & -stored;
  const f32x16 scale = splat(1.0f / std::sqrt(float(block)));
  for (int i = 0; i < D; i += LANES) {
    f32x16 v = load(x + i);
    for (int stride = 1; stride < LANES && stride < block; stride *= 2) v = butterfly(v, stride);
    store(x + i, v * scale);
  }
  for (int stride = LANES; stride < block; stride *= 2)
    for (int i = 0; i < D; i += LANES) {
      if (i & stride) continue;
      const f32x16 a = load(x + i), b = load(x + i + stride);
      store(x + i, a + b), store(x + i + stride, a - b);
    }
}

}  // namespace ramet
