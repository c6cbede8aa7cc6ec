// Weights as a file has them -> panels (gemm.h). Runs once, at load.
//
// Sources: ggml blocks (Q4_0, Q4_1, Q8_0: copied code by code), or plain numbers, which are rounded to the wanted format here:
// W8 per block of 32 to largest magnitude / 127, W4 per block to the range [min, max] / 15.
#pragma once

#include "gemm.h"

namespace ramet {

enum Source : int32_t { FROM_Q4_0 = 0, FROM_Q4_1 = 1, FROM_Q8_0 = 2, FROM_BF16 = 3, FROM_F32 = 4, FROM_F16 = 5 };

INLINE size_t source_row_bytes(int source, size_t K) {
  switch (source) {
    case FROM_Q4_0: return K / 32 * 18;
    case FROM_Q4_1: return K / 32 * 20;
    case FROM_Q8_0: return K / 32 * 34;
    case FROM_F32: return K * 4;
    default: return K * 2;
  }
}

// Formats that a source can become: blocks keep their codes, plain numbers may become anything.
INLINE bool can_pack(int source, int format) {
  if (source == FROM_Q4_0 || source == FROM_Q4_1) return format == W4;
  if (source == FROM_Q8_0) return format == W8;
  return format >= W4 && format <= F32;
}

INLINE float element(const uint8_t* row, int source, size_t k) {
  if (source == FROM_F32) return load_as<float>(row + 4 * k);
  const uint16_t bits = load_as<uint16_t>(row + 2 * k);
  return source == FROM_BF16 ? bf16_to_float(bits) : half_to_float(bits);
}

// Where the numbers of one block of one column go.
struct BlockTarget {
  uint8_t* codes;    // the block's first vector
  uint16_t* scales;  // the block's sixteen scales, then (W4) sixteen minima
  int column;
  void put4(int v, const uint8_t* four_bytes) { std::memcpy(codes + 64 * v + 4 * column, four_bytes, 4); }
};

INLINE void pack_w4_block(BlockTarget t, const uint8_t* row, int source, size_t kb) {
  uint8_t packed[16];
  uint16_t d, m;
  if (source == FROM_Q4_1) {
    const uint8_t* block = row + kb * 20;
    d = load_as<uint16_t>(block), m = load_as<uint16_t>(block + 2);
    std::memcpy(packed, block + 4, 16);
  } else if (source == FROM_Q4_0) {
    const uint8_t* block = row + kb * 18;
    d = load_as<uint16_t>(block);
    m = float_to_half(-8.0f * half_to_float(d));  // w = d * (q - 8); a power of two keeps every bit
    std::memcpy(packed, block + 2, 16);
  } else {
    float x[32], low = element(row, source, kb * 32), high = low;
    for (int i = 0; i < 32; i++) {
      x[i] = element(row, source, kb * 32 + i);
      low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    }
    d = float_to_half((high - low) / 15.0f), m = float_to_half(low);
    const float step = half_to_float(d), from = half_to_float(m), inverse = step > 0 ? 1.0f / step : 0.0f;
    auto code = [&](float value) {
      const float c = std::nearbyint((value - from) * inverse);
      return uint8_t(c < 0 ? 0 : (c > 15 ? 15 : c));
    };
    for (int i = 0; i < 16; i++) packed[i] = uint8_t(code(x[i]) | code(x[i + 16]) << 4);
  }
  for (int v = 0; v < 4; v++) t.put4(v, packed + 4 * v);
  t.scales[t.column] = d, t.scales[16 + t.column] = m;
}

INLINE void pack_w8_block(BlockTarget t, const uint8_t* row, int source, size_t kb) {
  uint8_t codes[32];
  uint16_t d;
  if (source == FROM_Q8_0) {
    const uint8_t* block = row + kb * 34;
    d = load_as<uint16_t>(block);
    for (int i = 0; i < 32; i++) codes[i] = uint8_t(block[2 + i] ^ 0x80);  // signed -> offset by 128
  } else {
    float x[32], largest = 0;
    for (int i = 0; i < 32; i++) {
      x[i] = element(row, source, kb * 32 + i);
      largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    }
    d = float_to_half(largest / 127.0f);
    const float step = half_to_float(d), inverse = step > 0 ? 1.0f / step : 0.0f;
    for (int i = 0; i < 32; i++) {
      const float c = std::nearbyint(x[i] * inverse);
      codes[i] = uint8_t(int(c < -127 ? -127 : (c > 127 ? 127 : c)) + 128);
    }
  }
  for (int v = 0; v < 8; v++) t.put4(v, codes + 4 * v);
  t.scales[t.column] = d;
}

// Rows (output columns) [16 p, 16 p + 16) of `source` into panel p. Columns past N stay zero.
inline void pack_panel(const Matrix& w, int p, const uint8_t* source_rows, int source) {
  uint8_t* panel = w.data + w.panel_bytes * p;
  std::memset(panel, 0, w.panel_bytes);
  const size_t K = w.K, row_bytes = source_row_bytes(source, K);
  for (int column = 0; column < LANES && p * LANES + column < w.N; column++) {
    const uint8_t* row = source_rows + row_bytes * (size_t(p) * LANES + column);
    if (w.format == BF16) {
      for (size_t k = 0; k < K; k++) {
        const uint16_t value = float_to_bf16(element(row, source, k));
        std::memcpy(panel + (k / 2) * 64 + 4 * column + 2 * (k & 1), &value, 2);
      }
    } else if (w.format == F32) {
      for (size_t k = 0; k < K; k++) {
        const float value = element(row, source, k);
        std::memcpy(panel + k * 64 + 4 * column, &value, 4);
      }
    } else {
      for (size_t kb = 0; kb < K / 32; kb++) {
        if (w.format == W4)
          pack_w4_block({panel + kb * 256, (uint16_t*)(panel + K / 32 * 256 + kb * 64), column}, row, source, kb);
        else
          pack_w8_block({panel + kb * 512, (uint16_t*)(panel + K / 32 * 512 + kb * 32), column}, row, source, kb);
      }
    }
  }
}

}  // namespace ramet
