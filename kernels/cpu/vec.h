// Sixteen lanes of float, whatever the machine has: AVX-512, AVX2 in two halves, or the compiler's own vectors.
//
// One rule holds everywhere in this folder: a number that belongs to one row of a batch is computed by a sequence of
// operations that depends on that row alone. So nothing here relies on the compiler fusing a multiply and an add (builds
// use -ffp-contract=off); where a fused operation is wanted, `fma` says so.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

namespace ramet {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

constexpr int LANES = 16;

template <class V, class T>
INLINE V load_as(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
INLINE void store_as(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
INLINE f32x16 load(const float* p) { return load_as<f32x16>(p); }
INLINE void store(float* p, f32x16 v) { store_as(p, v); }
INLINE f32x16 splat(float x) { return f32x16{} + x; }
INLINE i32x16 splat_i(int32_t x) { return i32x16{} + x; }
INLINE f32x16 as_float(i32x16 v) { return (f32x16)v; }
INLINE i32x16 as_int(f32x16 v) { return (i32x16)v; }
INLINE i32x16 lane_index() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) { return mask ? yes : no; }
#if defined(__AVX512F__)  // the instruction does what is written below, NaN and signed zeros included
INLINE f32x16 maximum(f32x16 a, f32x16 b) { return (f32x16)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE f32x16 minimum(f32x16 a, f32x16 b) { return (f32x16)_mm512_min_ps((__m512)a, (__m512)b); }
#else
INLINE f32x16 maximum(f32x16 a, f32x16 b) { return a > b ? a : b; }
INLINE f32x16 minimum(f32x16 a, f32x16 b) { return a < b ? a : b; }
#endif
INLINE f32x16 absolute(f32x16 v) { return as_float(as_int(v) & 0x7fffffff); }
// Between widths, GCC 12 makes sixteen scalar moves of __builtin_convertvector.
INLINE i32x16 widen(i8x16 v) {
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtepi8_epi32((__m128i)v);
#elif defined(__AVX2__)
  const __m256i halves[2] = {_mm256_cvtepi8_epi32((__m128i)v), _mm256_cvtepi8_epi32(_mm_srli_si128((__m128i)v, 8))};
  return load_as<i32x16>(halves);
#else
  return __builtin_convertvector(v, i32x16);
#endif
}
INLINE i8x16 narrow(i32x16 v) {  // -128 <= v <= 127
#if defined(__AVX512F__)
  return (i8x16)_mm512_cvtepi32_epi8((__m512i)v);
#else
  return __builtin_convertvector(v, i8x16);
#endif
}
INLINE int32_t sum_lanes(i32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#else
  int32_t total = 0;
  for (int lane = 0; lane < LANES; lane++) total += v[lane];
  return total;
#endif
}
INLINE f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

// a * b + c, rounded once.
INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  __m256 x[2], y[2], z[2];
  std::memcpy(x, &a, 64), std::memcpy(y, &b, 64), std::memcpy(z, &c, 64);
  z[0] = _mm256_fmadd_ps(x[0], y[0], z[0]), z[1] = _mm256_fmadd_ps(x[1], y[1], z[1]);
  return load_as<f32x16>(z);
#else
  for (int i = 0; i < LANES; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

// Round to the nearest integer, ties to even. |v| < 2^22.
INLINE i32x16 round_to_int(f32x16 v) {
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtps_epi32((__m512)v);
#else
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: the sum's low mantissa bits are the rounded integer
  return as_int(v + magic) - as_int(magic);
#endif
}

// Sum of the sixteen lanes in one fixed tree: halves, quarters, ... (the tree of _mm512_reduce_add_ps).
INLINE float sum_lanes(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#endif
  float x[LANES];
  store(x, v);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) x[i] += x[i + width];
  return x[0];
}
INLINE float max_lanes(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#endif
  float x[LANES];
  store(x, v);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  return x[0];
}

INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000 | mantissa << 13;
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {  // subnormal: its value is mantissa * 2^-24, exact in float
    const float value = mantissa * 5.9604644775390625e-8f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
// Nearest, ties to even; beyond the range, infinity.
INLINE uint16_t float_to_half(float f) {
  uint32_t x;
  std::memcpy(&x, &f, 4);
  const uint32_t sign = x >> 16 & 0x8000;
  x &= 0x7fffffff;
  if (x >= 0x47800000) return uint16_t(sign | (x > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (x < 0x38800000) {
    float magnitude;
    std::memcpy(&magnitude, &x, 4);
    magnitude += 0.5f;  // the sum's unit in the last place is 2^-24, as a subnormal half's
    uint32_t y;
    std::memcpy(&y, &magnitude, 4);
    return uint16_t(sign | (y - 0x3f000000));
  }
  x += 0xc8000fff + (x >> 13 & 1);  // rebias the exponent (-112 << 23) and round
  return uint16_t(sign | x >> 13);
}
INLINE f32x16 load_half(const uint16_t* p) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
  __m256 x[2] = {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
  return load_as<f32x16>(x);
#else
  f32x16 v;
  for (int i = 0; i < LANES; i++) v[i] = half_to_float(p[i]);
  return v;
#endif
}

INLINE float bf16_to_float(uint16_t b) {
  const uint32_t bits = uint32_t(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
INLINE f32x16 load_bf16(const uint16_t* p) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#else
  return (f32x16)(__builtin_convertvector(load_as<u16x16>(p), u32x16) << 16);
#endif
}
// Nearest, ties to even. NaN stays NaN only by luck of its payload: values here are finite.
INLINE u16x16 to_bf16(f32x16 v) {
#if defined(__AVX512BF16__)
  return (u16x16)_mm512_cvtneps_pbh((__m512)v);
#endif
  const u32x16 x = (u32x16)v;
  return __builtin_convertvector((x + 0x7fff + (x >> 16 & 1)) >> 16, u16x16);
}
INLINE uint16_t float_to_bf16(float f) {
  uint32_t x;
  std::memcpy(&x, &f, 4);
  return uint16_t((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

// e^x to within 2 units in the last place; 0 below -87.3, so that a masked score (-inf) weighs exactly nothing.
INLINE f32x16 exponential(f32x16 x) {
  const f32x16 low = splat(-87.3f), high = splat(88.3f);
  const f32x16 clamped = maximum(minimum(x, high), low);
  const i32x16 n = round_to_int(clamped * 1.44269504088896341f);
  const f32x16 nf = to_float(n);
  f32x16 r = fma(nf, splat(-0.693359375f), clamped);  // x - n ln 2, in two steps: the first is exact
  r = fma(nf, splat(2.12194440e-4f), r);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
#if defined(__AVX512F__)
  const f32x16 scaled = (f32x16)_mm512_scalef_ps((__m512)p, (__m512)nf);
#else
  const f32x16 scaled = p * as_float((n + 127) << 23);
#endif
  return select(x < low, splat(0.0f), scaled);
}
// e^x for x <= 0, to within 4 units in the last place where x > -10: what softmax asks for, in two thirds of the instructions.
// 0 below -87.3.
INLINE f32x16 exponential_of_negative(f32x16 x) {
  const f32x16 low = splat(-87.3f), clamped = maximum(x, low), log2e = splat(1.44269504088896341f);
#if defined(__AVX512F__)
  const f32x16 n = (f32x16)_mm512_roundscale_ps((__m512)(clamped * log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const i32x16 whole = round_to_int(clamped * log2e);
  const f32x16 n = to_float(whole);
#endif
  const f32x16 r = fma(clamped, log2e, -n);  // 2^r, r in [-1/2, 1/2]
  f32x16 p = splat(1.339086681e-3f);
  p = fma(p, r, splat(9.666373953e-3f));
  p = fma(p, r, splat(5.550356954e-2f));
  p = fma(p, r, splat(2.402234823e-1f));
  p = fma(p, r, splat(6.931471825e-1f));
  p = fma(p, r, splat(1.0f));
#if defined(__AVX512F__)
  return (f32x16)_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ), (__m512)p, (__m512)n);
#else
  return select(x < low, splat(0.0f), p * as_float((whole + 127) << 23));
#endif
}
INLINE float exponential(float x) { return exponential(splat(x))[0]; }
INLINE f32x16 silu(f32x16 x) { return x / (exponential(-x) + 1.0f); }
INLINE f32x16 tanh_of(f32x16 x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }
INLINE f32x16 gelu_tanh(f32x16 x) {
  const f32x16 inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanh_of(inner));
}

}  // namespace ramet
