// Set to -inf what a packed mask denies: bit j of word w, lowest first, is column 32 * w + j; 0 denies.
#include "vec.h"

using namespace ramet;

namespace {

// Sixteen columns by their sixteen bits.
INLINE void deny(float* p, uint32_t bits) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, __mmask16(~bits), _mm512_set1_ps(-INFINITY));
#else
  const i32x16 allowed = ((splat_i(int32_t(bits)) >> lane_index()) & 1) != 0;
  store(p, select(allowed, load(p), splat(-INFINITY)));
#endif
}

}  // namespace

extern "C" void ramet_apply_mask(float* row, int V, const uint32_t* words) {
  int at = 0;
  for (; at + LANES <= V; at += LANES) {
    const uint32_t bits = words[at / 32] >> (at % 32) & 0xffff;
    if (bits != 0xffff) deny(row + at, bits);
  }
  for (; at < V; at++)
    if (!(words[at / 32] >> (at % 32) & 1)) row[at] = -INFINITY;
}
