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

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "vec.h"

namespace ramet {

enum Format : int32_t { W4 = 0, W8 = 1, BF16 = 2, F32 = 3 };

// A kernel multiplies a tile of rows with PANELS panels; a product always takes two of them, PAIR columns. Two at once share
// each activation, which else is a load for every dot product: 6 x 2 integer and 6 x 2 float accumulators, and room for
// weights in 32 registers.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6, PANELS = 2;
#else
constexpr int TILE_ROWS = 4, PANELS = 1;
#endif
constexpr int PAIR = 2 * LANES;

struct Scale {
  float scale, scaled_sum;
};

struct Matrix {
  int32_t format = F32, N = 0, K = 0, num_panels = 0;
  size_t panel_bytes = 0;
  uint8_t* data = nullptr;      // panels, an even number of them: what N lacks is zero
  const float* bias = nullptr;  // [N], or none
  const uint8_t* panel(int p) const { return data + panel_bytes * p; }
  int num_pairs() const { return num_panels / 2; }
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

// ---- an activation for all lanes, and what meets it
//
// `spread_*` leave it in a register where there are registers enough: read from memory by each product, it would take the two
// loads a cycle that the machine has for two products a cycle.

#if defined(__AVX512F__)
using Operand = i32x16;
INLINE Operand spread32(const void* activations) {
  Operand v = splat_i(load_as<int32_t>((const uint8_t*)activations));
  asm("" : "+v"(v));
  return v;
}
#else
using Operand = const void*;
INLINE Operand spread32(const void* activations) { return activations; }
#endif

// Integer dot products of four bytes a lane: weights unsigned, activations signed.
template <int BITS>
INLINE i32x16 dot4(i32x16 sum, u8x64 weights, Operand activations) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)activations);
#elif defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
  const int32_t group = activations[0];
#else
  const int32_t group = load_as<int32_t>((const uint8_t*)activations);
#endif
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
  const int8_t* bytes = (const int8_t*)activations;
  for (int lane = 0; lane < LANES; lane++)
    for (int i = 0; i < 4; i++) sum[lane] += int32_t(weights[4 * lane + i]) * bytes[i];
  return sum;
#endif
}

// Two bfloat16 products a lane, added to a float.
INLINE f32x16 dot2(f32x16 sum, u8x64 weights, Operand activations) {
#if defined(__AVX512BF16__)
  return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)activations);
#else
#if defined(__AVX512F__)
  const u32x16 pair = (u32x16)activations;
  const f32x16 first = (f32x16)(pair << 16), second = (f32x16)(pair & 0xffff0000u);
#else
  const uint16_t* values = (const uint16_t*)activations;
  const f32x16 first = splat(bf16_to_float(values[0])), second = splat(bf16_to_float(values[1]));
#endif
  const u32x16 both = (u32x16)weights;
  sum = fma((f32x16)(both & 0xffff0000u), second, sum);
  return fma((f32x16)(both << 16), first, sum);
#endif
}

// Weights are asked for some blocks ahead (a prefetch past the end is harmless): panels come from memory once a step, and the
// hardware's own prefetcher alone reaches two thirds of the bandwidth.

// ---- PANELS panels, `stride` bytes apart, times one tile: out[p][i][0..15] of panel p and row i < MR

// What an output gets from one block: d * s * dots, and m * s * sum.
template <int MR>
INLINE void add_block(f32x16 (&sums)[MR], const i32x16 (&dots)[MR], f32x16 d, f32x16 m, const Scale* scale) {
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++) {
    sums[i] = fma(to_float(dots[i]), d * scale[i].scale, sums[i]);
    sums[i] = fma(m, splat(scale[i].scaled_sum), sums[i]);
  }
}
template <int MR>
INLINE void put_sums(const f32x16 (&sums)[PANELS][MR], float* out) {
  for (int p = 0; p < PANELS; p++)
    for (int i = 0; i < MR; i++) store(out + LANES * (p * MR + i), sums[p][i]);
}

template <int MR>
void multiply_w4(const uint8_t* panel, size_t stride, int num_blocks, const Activations& a, size_t first, float* out) {
  const int8_t* q = a.q + first * a.K;
  const Scale* scale = a.scale + first * num_blocks;
  const uint8_t* scales = panel + size_t(num_blocks) * 256;
  f32x16 sums[PANELS][MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, q += MR * 32, scale += MR, panel += 256, scales += 64) {
    i32x16 dots[PANELS][MR] = {};
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      u8x64 low[PANELS], high[PANELS];
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; p++) {
        const uint8_t* at = panel + p * stride + 64 * v;
        __builtin_prefetch(at + 2048);
        const u8x64 raw = load_as<u8x64>(at);
        low[p] = raw & 15, high[p] = (u8x64)((u32x16)raw >> 4) & 15;
      }
#pragma GCC unroll 6
      for (int i = 0; i < MR; i++) {
        const Operand x = spread32(q + 32 * i + 4 * v);
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) dots[p][i] = dot4<4>(dots[p][i], low[p], x);
      }
#pragma GCC unroll 6
      for (int i = 0; i < MR; i++) {
        const Operand x = spread32(q + 32 * i + 16 + 4 * v);
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) dots[p][i] = dot4<4>(dots[p][i], high[p], x);
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++) {
      const uint16_t* half = (const uint16_t*)(scales + p * stride);
      add_block<MR>(sums[p], dots[p], load_half(half), load_half(half + 16), scale);
    }
  }
  put_sums<MR>(sums, out);
}

template <int MR>
void multiply_w8(const uint8_t* panel, size_t stride, int num_blocks, const Activations& a, size_t first, float* out) {
  const int8_t* q = a.q + first * a.K;
  const Scale* scale = a.scale + first * num_blocks;
  const uint8_t* scales = panel + size_t(num_blocks) * 512;
  f32x16 sums[PANELS][MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, q += MR * 32, scale += MR, panel += 512, scales += 32) {
    i32x16 dots[PANELS][MR] = {};
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
      u8x64 weights[PANELS];
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; p++) {
        __builtin_prefetch(panel + p * stride + 3072 + 64 * v);
        weights[p] = load_as<u8x64>(panel + p * stride + 64 * v);
      }
#pragma GCC unroll 6
      for (int i = 0; i < MR; i++) {
        const Operand x = spread32(q + 32 * i + 4 * v);
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) dots[p][i] = dot4<8>(dots[p][i], weights[p], x);
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++) {
      const f32x16 d = load_half((const uint16_t*)(scales + p * stride));
      add_block<MR>(sums[p], dots[p], d, d * -128.0f, scale);
    }
  }
  put_sums<MR>(sums, out);
}

template <int MR>
void multiply_bf16(const uint8_t* panel, size_t stride, int num_blocks, const Activations& a, size_t first, float* out) {
  const uint16_t* b = a.b + first * a.K;
  f32x16 sums[PANELS][MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, b += MR * 32, panel += 1024) {
#pragma GCC unroll 16
    for (int v = 0; v < 16; v++) {
      u8x64 weights[PANELS];
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; p++) {
        __builtin_prefetch(panel + p * stride + 4096 + 64 * v);
        weights[p] = load_as<u8x64>(panel + p * stride + 64 * v);
      }
#pragma GCC unroll 6
      for (int i = 0; i < MR; i++) {
        const Operand x = spread32(b + 32 * i + 2 * v);
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) sums[p][i] = dot2(sums[p][i], weights[p], x);
      }
    }
  }
  put_sums<MR>(sums, out);
}

template <int MR>
void multiply_f32(const uint8_t* panel, size_t stride, int num_blocks, const Activations& a, size_t first, float* out) {
  const float* f = a.f + first * a.K;
  f32x16 sums[PANELS][MR] = {};
  for (int kb = 0; kb < num_blocks; kb++, f += MR * 32, panel += 2048) {
#pragma GCC unroll 4
    for (int k = 0; k < 32; k++) {
#pragma GCC unroll 6
      for (int i = 0; i < MR; i++) {
        const f32x16 x = splat(f[32 * i + k]);
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) sums[p][i] = fma(load((const float*)(panel + p * stride) + 16 * k), x, sums[p][i]);
      }
    }
  }
  put_sums<MR>(sums, out);
}

using Multiply = void (*)(const uint8_t*, size_t, int, const Activations&, size_t, float*);

template <int... H>
struct Heights {
  static constexpr Multiply table[4][sizeof...(H)] = {
      {multiply_w4<H>...}, {multiply_w8<H>...}, {multiply_bf16<H>...}, {multiply_f32<H>...}};
};
#if defined(__AVX512F__)
using Kernels = Heights<1, 2, 3, 4, 5, 6>;
#else
using Kernels = Heights<1, 2, 3, 4>;
#endif

// out [2][h][16]: panels 2 `pair` and 2 `pair` + 1 of the matrix times the tile of h rows that starts at row `first`.
INLINE void multiply(const Matrix& w, int pair, const Activations& a, int first, int h, float* out) {
  for (int p = 0; p < 2; p += PANELS)
    Kernels::table[w.format][h - 1](w.panel(2 * pair + p), w.panel_bytes, w.K / 32, a, size_t(first), out + p * h * LANES);
  if (!w.bias) return;
  for (int p = 0; p < 2; p++) {
    const float* bias = w.bias + pair * PAIR + p * LANES;
    const int columns = std::min(LANES, w.N - pair * PAIR - p * LANES);
    for (int i = 0; i < h; i++)
      for (int c = 0; c < columns; c++) out[LANES * (p * h + i) + c] += bias[c];
  }
}

}  // namespace ramet
