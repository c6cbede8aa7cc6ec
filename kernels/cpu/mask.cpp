// Packed token masks: bit j of word w, lowest first, is token 32 * w + j; 0 denies. Denied logits become -inf; the
// tokens of a mask that allows few are listed.
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

extern "C" {

void ramet_apply_mask(float* row, int V, const uint32_t* words) {
  int at = 0;
  for (; at + LANES <= V; at += LANES) {
    const uint32_t bits = words[at / 32] >> (at % 32) & 0xffff;
    if (bits != 0xffff) deny(row + at, bits);
  }
  for (; at < V; at++)
    if (!(words[at / 32] >> (at % 32) & 1)) row[at] = -INFINITY;
}

// The allowed tokens, ascending, into `out`; returns how many, or -1 where there are more than `capacity`.
int ramet_allowed_tokens(const uint32_t* words, int num_words, int capacity, int64_t* out) {
  int count = 0;
  for (int w = 0; w < num_words; w++) {
    uint32_t bits = words[w];
    if (count + __builtin_popcount(bits) > capacity) return -1;
    for (; bits; bits &= bits - 1) out[count++] = int64_t(w) * 32 + __builtin_ctz(bits);
  }
  return count;
}

}  // extern "C"
