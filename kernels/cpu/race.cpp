// Which tokens can still win the race for a draw: those whose logit / T - log E is largest, for one E ~ Exp(1) a token.
//
// A draw over a vocabulary costs a hash and two logarithms a token, and all but a few tokens lose by far. Here a token
// pays for a hash, a division and a comparison; whoever might win is named, and the caller computes those few exactly.
// So this file decides nothing: it may name too many, and must never leave out the winner.
//
// E = -log(1 - u) for a uniform u, so a token beats `best` exactly where u < 1 - exp(-exp(s - best)) <= exp(s - best).
// The comparison is with a number above that: the chord of 2^x between whole x, which the bits of a float are.
#include "vec.h"

using namespace ramet;

namespace {

constexpr float LOG2_E = 1.44269504088896341f, MARGIN = 1e-3f, SLACK = 1.001f;

struct Noise {
  uint32_t first, second;
  // 31 random bits for each of sixteen tokens, as `_noise_bits` of runtime/sampling/noise.py makes them.
  u32x16 bits(u32x16 hashed) const {
    u32x16 b = (hashed ^ first) * 0x7feb352du;
    b ^= b >> 15;
    b = (b + second) * 0x846ca68bu;
    b ^= b >> 16;
    b *= 0x2c1b3c6du;
    b ^= b >> 15;
    return b & 0x7fffffffu;
  }
};

// Not below e^x, and above it by at most seven percent; x <= 0 matters only, above it anything from 1 on will do.
INLINE f32x16 above_exponential(f32x16 x) {
  const f32x16 y = maximum(minimum(x * LOG2_E, splat(1.0f)), splat(-126.0f));
  return as_float(__builtin_convertvector((y + 127.0f) * 8388608.0f, i32x16)) * SLACK;
}

INLINE f32x16 uniform(u32x16 bits) { return (to_float((i32x16)bits) + 0.5f) * 4.656612873077393e-10f; }

float score(float scaled, float u) { return scaled - std::log(-std::log1p(-std::fmin(u, 0.99999994f))); }

INLINE uint32_t lanes_where(i32x16 yes) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)yes);
#else
  uint32_t found = 0;
  for (int i = 0; i < LANES; i++) found |= uint32_t(yes[i] < 0) << i;
  return found;
#endif
}

struct Row {
  const float* logits;
  float temperature;
  Noise noise;
  const uint32_t* hashes;
  float best;  // the winner's score is at least this

  // Name those of `lanes` tokens from `at` on that may win; false where there is no room.
  bool look(int at, int lanes, int32_t* out, int capacity, int& count) {
    f32x16 s = splat(-INFINITY);
    u32x16 h = {};
    std::memcpy(&s, logits + at, size_t(lanes) * 4), std::memcpy(&h, hashes + at, size_t(lanes) * 4);
    s /= temperature;
    const f32x16 limit = above_exponential(s - (best - MARGIN));
    const f32x16 u = uniform(noise.bits(h));
    uint32_t may = lanes_where(u <= limit) & ((1u << lanes) - 1);
    for (; may; may &= may - 1) {
      const int lane = __builtin_ctz(may);
      if (count == capacity) return false;
      out[count++] = at + lane;
      best = std::fmax(best, score(s[lane], u[lane]));
    }
    return true;
  }
};

float largest(const float* logits, int V) {
  f32x16 most = splat(-INFINITY);
  int at = 0;
  for (; at + LANES <= V; at += LANES) most = maximum(most, load(logits + at));
  float found = max_lanes(most);
  for (; at < V; at++) found = std::fmax(found, logits[at]);
  return found;
}

}  // namespace

extern "C" {

// logits [num_rows, stride] float32, no NaN; -inf where a token is denied. keys [num_rows, 2]. hashes [V].
// out [num_rows, capacity]: tokens, ascending; counts [num_rows]: how many, or -1 where there were more than fit.
void ramet_race_candidates(const float* logits, int64_t stride, int num_rows, int V, const float* temperatures,
                           const int32_t* keys, const uint32_t* hashes, int capacity, int32_t* out, int32_t* counts) {
  for (int r = 0; r < num_rows; r++) {
    const float* row = logits + r * stride;
    const Noise noise{uint32_t(keys[2 * r]), uint32_t(keys[2 * r + 1])};
    // log E < 3 always: the likeliest token scores at least this
    Row race{row, temperatures[r], noise, hashes, largest(row, V) / temperatures[r] - 3.0f};
    int count = 0;
    bool fits = true;
    for (int at = 0; at < V && fits; at += LANES)
      fits = race.look(at, V - at < LANES ? V - at : LANES, out + int64_t(r) * capacity, capacity, count);
    counts[r] = fits ? count : -1;
  }
}

}  // extern "C"
