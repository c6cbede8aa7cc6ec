// Weights packed into panels of sixteen output columns, activations quantised into tiles of rows, and their product.
//
// Weight formats (K is cut into blocks of 32; a panel is 16 columns by all of K, its parts one after the other):
//   W4    w = d * q + m, q in 0..15     [K/32][4][16][4 bytes] then [K/32][{d, m}][16] half      5 bits a weight
//   W8    w = d * (q - 128), q a byte   [K/32][8][16][4 bytes] then [K/32][16] half              8.5 bits
//   BF16                                [K/2][16][2] bfloat16
//   F32                                 [K][16] float
// In W4 a 64-byte vector holds, for each of 16 columns, bytes 4v..4v+3 of the block as ggml lays them: low nibbles are inputs
// 4v..4v+3, high nibbles 16+4v..16+4v+3. So a GGUF Q4_1 block is copied, never requantised.
//
// Activations: rows are cut into tiles of nearly equal height h <= TILE_ROWS; within a tile [K/32][h][32], so that a kernel
// reaches all rows of a tile from one pointer with constant offsets. int8 ones carry, per block, the scale s (largest
// magnitude / 127) and s * sum(q), which the minimum m multiplies.
//
// Sums: an output is the sum over blocks, in order, of d * s * (integer dot product); nothing about the order depends on the
// other rows, on the tile's height or on who computes it.
#pragma once

#include <cstddef>
#include <cstdlib>

#include "vec.h"

namespace ramet {

enum Format : int32_t { W4 = 0, W8 = 1, BF16 = 2, F32 = 3 };

#if defined(__AVX512F__)
constexpr int TILE_ROWS = 12;  // 12 integer and 12 float accumulators, and room for weights in 32 registers
#else
constexpr int TILE_ROWS = 4;
#endif

struct Scale {
  float scale, scaled_sum;
};

struct Matrix {
  int32_t format = F32, N = 0, K = 0, num_panels = 0;
  size_t panel_bytes = 0;
  uint8_t* data = nullptr;
  const float* bias = nullptr;  // [N], or none
  const uint8_t* panel(int p) const { return data + panel_bytes * p; }
};

INLINE size_t panel_bytes_of(int format, size_t K) {
  switch (format) {
    case W4: return K / 32 * (256 + 64);
    case W8: return K / 32 * (512 + 32);
    case BF16: return K * 32;
    default: return K * 64;
  }
}

// How M rows are cut into tiles: the first `extra` are one row higher than the others.
struct Tiles {
  int M, count, base, extra;
  explicit Tiles(int rows) : M(rows) {
    count = (rows + TILE_ROWS - 1) / TILE_ROWS;
    base = count ? rows / count : 0;
    extra = count ? rows % count : 0;
  }
  int first(int tile) const { return tile * base + (tile < extra ? tile : extra); }
  int height(int tile) const { return base + (tile < extra); }
  int tile_of(int row) const {
    const int high = extra * (base + 1);
    return row < high ? row / (base + 1) : extra + (row - high) / base;
  }
};

// The rows of one input in each form that some weight asks for; absent forms are null.
struct Activations {
  int K = 0;
  int8_t* q = nullptr;
  Scale* scale = nullptr;
  uint16_t* b = nullptr;
  float* f = nullptr;

  // Block kb (32 inputs) of row i of the tile that starts at row `first` and is h rows high.
  void put(int first, int h, int i, int kb, f32x16 low, f32x16 high) const {
    const size_t at = size_t(first) * K + size_t(kb) * h * 32 + size_t(i) * 32;
    if (f) store(f + at, low), store(f + at + 16, high);
    if (b) store_as(b + at, to_bf16(low)), store_as(b + at + 16, to_bf16(high));
    if (q) put_int8(at, low, high);
  }

 private:
  void put_int8(size_t at, f32x16 low, f32x16 high) const {
    const float largest = max_lanes(maximum(absolute(low), absolute(high)));
    const float s = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
    const i32x16 a = round_to_int(low * inverse), c = round_to_int(high * inverse);
    store_as(q + at, narrow(a)), store_as(q + at + 16, narrow(c));
    scale[at / 32] = Scale{s, s * float(sum_lanes(a + c))};
  }
};

// ---- integer dot products of four bytes a lane: weights unsigned, activations signed, one activation group for all lanes

template <int BITS>
INLINE i32x16 dot4(i32x16 sum, u8x64 weights, const int8_t* activations) {
  int32_t group;
  std::memcpy(&group, activations, 4);
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(group));
#elif defined(__AVX2__)
  const __m256i a = _mm256_set1_epi32(group), ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
  __m256i w[2], s[2];
  std::memcpy(w, &weights, 64), std::memcpy(s, &sum, 64);
  for (int half = 0; half < 2; half++) {
    if (BITS == 4) {  // 2 * 15 * 127 fits in 16 bits
      s[half] = _mm256_add_epi32(s[half], _mm256_madd_epi16(_mm256_maddubs_epi16(w[half], a), ones));
    } else {  // 2 * 255 * 127 does not: nibble by nibble
      const __m256i lo = _mm256_maddubs_epi16(_mm256_and_si256(w[half], low), a);
      const __m256i hi = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w[half], 4), low), a);
      const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(lo, ones), _mm256_slli_epi32(_mm256_madd_epi16(hi, ones), 4));
      s[half] = _mm256_add_epi32(s[half], both);
    }
  }
  return load_as<i32x16>(s);
#else
  for (int lane = 0; lane < LANES; lane++)
    for (int i = 0; i < 4; i++) sum[lane] += int32_t(weights[4 * lane + i]) * activations[i];
  return sum;
#endif
}

// Two bfloat16 products a lane, added to a float.
INLINE f32x16 dot2(f32x16 sum, u8x64 weights, const uint16_t* activations) {
#if defined(__AVX512BF16__)
  int32_t pair;
  std::memcpy(&pair, activations, 4);
  return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(pair));
#else
  const u32x16 both = (u32x16)weights;
  sum = fma((f32x16)(both & 0xffff0000u), splat(bf16_to_float(activations[1])), sum);
  return fma((f32x16)(both << 16), splat(bf16_to_float(activations[0])), sum);
#endif
}

// Weights are asked for some blocks ahead (a prefetch past the end is harmless): panels come from memory once a step, and the
// hardware's own prefetcher alone reaches two thirds of the bandwidth.

// ---- one panel times one tile: out[i][0..15] of row i < MR

template <int MR>
void multiply_w4(const uint8_t* panel, int num_blocks, const Activations& a, size_t first, float* out) {
  const int8_t* q = a.q + first * a.K;
  const Scale* scale = a.scale + first * num_blocks;
  const uint8_t* scales = panel + size_t(num_blocks) * 256;
  f32x16 sums[MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, q += MR * 32, scale += MR, panel += 256, scales += 64) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) __builtin_prefetch(panel + 2048 + 64 * v);
    i32x16 dots[MR] = {};
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      const u8x64 raw = load_as<u8x64>(panel + 64 * v);
      const u8x64 low = raw & 15, high = (u8x64)((u32x16)raw >> 4) & 15;
#pragma GCC unroll 12
      for (int i = 0; i < MR; i++) dots[i] = dot4<4>(dots[i], low, q + 32 * i + 4 * v);
#pragma GCC unroll 12
      for (int i = 0; i < MR; i++) dots[i] = dot4<4>(dots[i], high, q + 32 * i + 16 + 4 * v);
    }
    const f32x16 d = load_half((const uint16_t*)scales), m = load_half((const uint16_t*)scales + 16);
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
      sums[i] = fma(to_float(dots[i]), d * scale[i].scale, sums[i]);
      sums[i] = fma(m, splat(scale[i].scaled_sum), sums[i]);
    }
  }
  for (int i = 0; i < MR; i++) store(out + LANES * i, sums[i]);
}

template <int MR>
void multiply_w8(const uint8_t* panel, int num_blocks, const Activations& a, size_t first, float* out) {
  const int8_t* q = a.q + first * a.K;
  const Scale* scale = a.scale + first * num_blocks;
  const uint8_t* scales = panel + size_t(num_blocks) * 512;
  f32x16 sums[MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, q += MR * 32, scale += MR, panel += 512, scales += 32) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) __builtin_prefetch(panel + 3072 + 64 * v);
    i32x16 dots[MR] = {};
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
      const u8x64 weights = load_as<u8x64>(panel + 64 * v);
#pragma GCC unroll 12
      for (int i = 0; i < MR; i++) dots[i] = dot4<8>(dots[i], weights, q + 32 * i + 4 * v);
    }
    const f32x16 d = load_half((const uint16_t*)scales), m = d * -128.0f;
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
      sums[i] = fma(to_float(dots[i]), d * scale[i].scale, sums[i]);
      sums[i] = fma(m, splat(scale[i].scaled_sum), sums[i]);
    }
  }
  for (int i = 0; i < MR; i++) store(out + LANES * i, sums[i]);
}

template <int MR>
void multiply_bf16(const uint8_t* panel, int num_blocks, const Activations& a, size_t first, float* out) {
  const uint16_t* b = a.b + first * a.K;
  f32x16 sums[MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, b += MR * 32, panel += 1024) {
#pragma GCC unroll 16
    for (int v = 0; v < 16; v++) {
      __builtin_prefetch(panel + 4096 + 64 * v);
      const u8x64 weights = load_as<u8x64>(panel + 64 * v);
#pragma GCC unroll 12
      for (int i = 0; i < MR; i++) sums[i] = dot2(sums[i], weights, b + 32 * i + 2 * v);
    }
  }
  for (int i = 0; i < MR; i++) store(out + LANES * i, sums[i]);
}

template <int MR>
void multiply_f32(const uint8_t* panel, int num_blocks, const Activations& a, size_t first, float* out) {
  const float* f = a.f + first * a.K;
  const float* weights = (const float*)panel;
  f32x16 sums[MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, f += MR * 32, weights += 512) {
#pragma GCC unroll 4
    for (int k = 0; k < 32; k++) {
      const f32x16 w = load(weights + 16 * k);
#pragma GCC unroll 12
      for (int i = 0; i < MR; i++) sums[i] = fma(w, splat(f[32 * i + k]), sums[i]);
    }
  }
  for (int i = 0; i < MR; i++) store(out + LANES * i, sums[i]);
}

using Multiply = void (*)(const uint8_t*, int, const Activations&, size_t, float*);

template <int... H>
struct Heights {
  static constexpr Multiply table[4][sizeof...(H)] = {
      {multiply_w4<H>...}, {multiply_w8<H>...}, {multiply_bf16<H>...}, {multiply_f32<H>...}};
};
#if defined(__AVX512F__)
using Kernels = Heights<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#else
using Kernels = Heights<1, 2, 3, 4>;
#endif

// out [h][16]: panel `p` of the matrix times the tile of h rows that starts at row `first`.
INLINE void multiply(const Matrix& w, int p, const Activations& a, int first, int h, float* out) {
  Kernels::table[w.format][h - 1](w.panel(p), w.K / 32, a, size_t(first), out);
  if (w.bias) {
    const int columns = w.N - p * LANES < LANES ? w.N - p * LANES : LANES;
    for (int i = 0; i < h; i++)
      for (int c = 0; c < columns; c++) out[LANES * i + c] += w.bias[p * LANES + c];
  }
}

}  // namespace ramet
