// Attention of a few queries over one chunk of a row's paged keys and values, and the fold of chunk results.
//
// A context is cut into chunks of CHUNK keys at fixed places. The result of a chunk (largest score m, sum of weights l,
// weighted values o) depends on the query and the chunk alone; chunks are folded in order of their place. So it makes no
// difference to a query whether it came alone or in a block of others, whether its keys were computed a moment ago or found
// in the cache, and which thread took which chunk.
//
// A chunk is first laid out for the dot products ("packed"), which also gathers it from its pages; then all queries that
// look at it are served: the heads that share it (GQA), the tokens of a prompt block, the branches of a fork group.
//   keys    [CHUNK/16][D/PACK] vectors of 16 keys x PACK values       scores: lanes are keys
//   values  [CHUNK/PACK][D/16] vectors of 16 channels x PACK keys     output: lanes are channels
// PACK is 2 in bfloat16 (AVX512-BF16; queries and weights are rounded to bfloat16 too) and 1 in float.
#pragma once

#include <algorithm>

#include "gemm.h"

namespace ramet {

constexpr int CHUNK = 128;
constexpr int QUERY_TILE = 6;  // 6 queries x 4 vectors = 24 accumulators

enum KVType : int32_t { KV_BF16 = 0, KV_F32 = 1, KV_INT8 = 2 };

// One layer's pool. An int8 pool holds keys and values rotated (rotation.h), each head of a token with one scale.
struct KVLayer {
  void* keys;
  void* values;
  uint16_t* key_scales;    // [N, S, G] half, where int8
  uint16_t* value_scales;
};

// D is a multiple of 32; a head has `stored` channels in the pool, and those behind them, up to D, are zeros.
struct KVShape {
  int32_t type, page_size, G, D, stored;
  size_t at(int64_t slot, int g) const { return (size_t(slot) * G + g) * stored; }
  size_t width() const { return type == KV_BF16 ? 2 : (type == KV_F32 ? 4 : 1); }
  size_t head_bytes() const { return stored * width() + (type == KV_INT8 ? 2 : 0); }  // with its scale
};

// `spread` gives an operand that several products share: see gemm.h.
struct BFloat16Math {
  using Element = uint16_t;
  static constexpr int PACK = 2;
  static inline __attribute__((always_inline)) Operand spread(const Element* x) { return spread32(x); }
  static inline __attribute__((always_inline)) f32x16 dot(f32x16 sum, u8x64 v, Operand x) { return dot2(sum, v, x); }
  static inline __attribute__((always_inline)) void put(Element* out, f32x16 v) { store_as(out, to_bf16(v)); }
};
struct FloatMath {
  using Element = float;
  static constexpr int PACK = 1;
  static inline __attribute__((always_inline)) f32x16 spread(const Element* x) { return splat(*x); }
  static inline __attribute__((always_inline)) f32x16 dot(f32x16 sum, u8x64 v, f32x16 x) { return fma((f32x16)v, x, sum); }
  static inline __attribute__((always_inline)) void put(Element* out, f32x16 v) { store(out, v); }
};

// What one query may see: keys [low, high), and among its row's new tokens (from `start` on) only what the tree allows.
struct Query {
  const void* q;  // Element [D], already times the softmax scale
  int low, high;
  const uint8_t* tree = nullptr;  // [n] of the row's new tokens, or none: causal, which `high` says
  int start = 0;
  int window = 0;                       // in a tree, distance is counted in positions
  const int64_t* positions = nullptr;   // of the row's new tokens
  int64_t position = 0;                 // of this query
};

INLINE i32x16 visible_lanes(const Query& q, int base) {
  const i32x16 key = lane_index() + base;
  i32x16 visible = (key >= q.low) & (key < q.high);
  if (q.tree && base + LANES > q.start)
    for (int lane = 0; lane < LANES; lane++) {
      const int j = base + lane - q.start;
      if (j < 0 || base + lane >= q.high) continue;
      const bool seen = q.tree[j] && (!q.window || q.positions[j] > q.position - q.window);
      visible[lane] = seen ? -1 : 0;
    }
  return visible;
}
INLINE bool sees_all(const Query& q, int base) {
  return base >= q.low && base + LANES <= q.high && (!q.tree || base + LANES <= q.start);
}

// 16 x 16 lanes of 32 bits, rows <-> columns.
#if defined(__AVX512F__)
INLINE void transpose(i32x16 (&rows)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {  // pairs of rows, 32 bits at a time
    a[i] = _mm512_unpacklo_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // fours of rows, 64 bits at a time: b[i + c] has column c of each 128-bit part
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {  // 128-bit parts: a 4 x 4 transpose of them
    const __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    rows[c] = (i32x16)_mm512_shuffle_i32x4(even_low, even_high, 0x88);
    rows[4 + c] = (i32x16)_mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    rows[8 + c] = (i32x16)_mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    rows[12 + c] = (i32x16)_mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}
#else
INLINE void transpose(i32x16 (&rows)[16]) {
  int32_t in[16][16], out[16][16];
  std::memcpy(in, rows, sizeof in);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) out[j][i] = in[i][j];
  std::memcpy(rows, out, sizeof out);
}
#endif

// A thread's packed chunk and what it needs beside it.
template <class Math>
struct ChunkScratch {
  using Element = typename Math::Element;
  u8x64* keys;          // [CHUNK/16][D/PACK]
  u8x64* values;        // [CHUNK/PACK][D/16]
  float* scores;        // [QUERY_TILE][CHUNK]
  Element* weights;     // [QUERY_TILE][CHUNK]
  // int8 only: what scores and weights are multiplied by. Packed keys and values are the codes, exact in bfloat16.
  float key_scales[CHUNK], value_scales[CHUNK];
};

// 16 * PACK numbers of a stored row, as sixteen 32-bit lanes.
template <class Math, int TYPE>
INLINE i32x16 row_lanes(const void* base, size_t at) {
  const auto codes_at = [&](int i) {
    return to_float(widen(load_as<i8x16>((const int8_t*)base + at + i)));
  };
  if constexpr (Math::PACK == 2 && TYPE == KV_BF16) {
    return load_as<i32x16>((const uint16_t*)base + at);
  } else if constexpr (Math::PACK == 2) {
#if defined(__AVX512BF16__)
    return (i32x16)_mm512_cvtne2ps_pbh((__m512)codes_at(16), (__m512)codes_at(0));
#else
    const u16x16 halves[2] = {to_bf16(codes_at(0)), to_bf16(codes_at(16))};
    return load_as<i32x16>(halves);
#endif
  } else if constexpr (TYPE == KV_BF16) {
    return as_int(load_bf16((const uint16_t*)base + at));
  } else if constexpr (TYPE == KV_F32) {
    return as_int(load((const float*)base + at));
  } else {
    return as_int(codes_at(0));
  }
}

// The same where only `count` numbers are left of the row: zeros behind them, and nothing behind them is read.
template <class Math, int TYPE>
i32x16 last_lanes(const void* base, size_t at, int count) {
  constexpr size_t WIDTH = TYPE == KV_BF16 ? 2 : (TYPE == KV_F32 ? 4 : 1);
  uint8_t copy[LANES * Math::PACK * WIDTH] = {};
  if (count > 0) std::memcpy(copy, (const uint8_t*)base + at * WIDTH, count * WIDTH);
  return row_lanes<Math, TYPE>(copy, 0);
}

typedef uint16_t u16x32 __attribute__((vector_size(64)));

// Two stored rows side by side, (a0, b0), (a1, b1), ...: two vectors of sixteen channels.
INLINE void interleave(i32x16 a, i32x16 b, u8x64* out) {
#if defined(__AVX512BW__)
  const __m512i low = _mm512_unpacklo_epi16((__m512i)a, (__m512i)b), high = _mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  out[0] = (u8x64)_mm512_permutex2var_epi64(low, first, high);
  out[1] = (u8x64)_mm512_permutex2var_epi64(low, second, high);
#else
  const u16x32 x = (u16x32)a, y = (u16x32)b;
  uint16_t pairs[64];
  for (int i = 0; i < 32; i++) pairs[2 * i] = x[i], pairs[2 * i + 1] = y[i];
  std::memcpy(out, pairs, sizeof pairs);
#endif
}

constexpr size_t NOWHERE = SIZE_MAX;

// Touch every line of heads [g, g + num_heads) of keys [from, to), so that they come into the second-level cache as a
// stream. One head's keys alone are a stride that no hardware prefetcher follows, and software prefetches are limited by the
// few misses that the first-level cache tracks.
INLINE void touch(const KVShape& kv, const KVLayer& layer, const int32_t* table, int g, int num_heads, int from, int to) {
  const size_t width = kv.width(), row_bytes = size_t(kv.G) * kv.stored * width;
  const size_t skip = size_t(g) * kv.stored * width, bytes = size_t(num_heads) * kv.stored * width;
  for (const void* pool : {(const void*)layer.keys, (const void*)layer.values})
    for (int token = from; token < to;) {
      const int offset = token % kv.page_size, run = std::min(kv.page_size - offset, to - token);
      const uint8_t* row = (const uint8_t*)pool + (size_t(table[token / kv.page_size]) * kv.page_size + offset) * row_bytes + skip;
      for (int i = 0; i < run; i++, row += row_bytes)
        for (size_t at = 0; at < bytes; at += 64) *(volatile const uint8_t*)(row + at);
      token += run;
    }
}

// Tokens of a row, one after the other, by their place in the pool.
struct Cursor {
  const int32_t* table;
  int page_size, page, offset;
  Cursor(const int32_t* table, int page_size, int token)
      : table(table), page_size(page_size), page(token / page_size), offset(token % page_size) {}
  size_t next() {
    const size_t slot = size_t(table[page]) * page_size + offset;
    if (++offset == page_size) offset = 0, page++;
    return slot;
  }
};

// Sixteen tokens into the key and the value layout. at: where their rows begin; NOWHERE (only where not WHOLE): zeros.
template <class Math, int TYPE, bool WHOLE>
INLINE void pack_block(const KVLayer& layer, int D, int stored, const size_t (&at)[LANES], u8x64* keys, u8x64* values) {
  constexpr int PACK = Math::PACK;
  const auto row = [&](const void* base, int lane, int d) {
    if (!WHOLE && at[lane] == NOWHERE) return i32x16{};
    if (d + LANES * PACK > stored) return last_lanes<Math, TYPE>(base, at[lane] + d, stored - d);
    return row_lanes<Math, TYPE>(base, at[lane] + d);
  };
  for (int d = 0; d < D; d += LANES * PACK) {
    i32x16 rows[LANES];
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; lane++) rows[lane] = row(layer.keys, lane, d);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) keys[d / PACK + i] = (u8x64)rows[i];
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; lane += PACK) {
      u8x64* out = values + size_t(lane / PACK) * (D / LANES) + d / LANES;
      if constexpr (PACK == 2)
        interleave(row(layer.values, lane, d), row(layer.values, lane + 1, d), out);
      else
        *out = (u8x64)row(layer.values, lane, d);
    }
  }
}

template <class Math, int TYPE>
void pack_chunk_of(const KVShape& kv, const KVLayer& layer, const int32_t* table, int g, int base, int from, int to,
                   ChunkScratch<Math>& scratch) {
  constexpr int PACK = Math::PACK;
  const int D = kv.D;
  Cursor cursor(table, kv.page_size, base + from);
  for (int block = from; block < to; block += LANES) {
    size_t at[LANES];
    uint16_t key_scales[LANES] = {}, value_scales[LANES] = {};  // int8 only; half
    for (int lane = 0; lane < LANES; lane++) {
      at[lane] = NOWHERE;
      if (block + lane >= to) continue;
      const size_t head = cursor.next() * kv.G + g;
      at[lane] = head * kv.stored;
      if constexpr (TYPE == KV_INT8) key_scales[lane] = layer.key_scales[head], value_scales[lane] = layer.value_scales[head];
    }
    if constexpr (TYPE == KV_INT8)
      store(scratch.key_scales + block, load_half(key_scales)), store(scratch.value_scales + block, load_half(value_scales));
    u8x64* keys = scratch.keys + size_t(block / LANES) * (D / PACK);
    u8x64* values = scratch.values + size_t(block / PACK) * (D / LANES);
    if (block + LANES <= to)
      pack_block<Math, TYPE, true>(layer, D, kv.stored, at, keys, values);
    else
      pack_block<Math, TYPE, false>(layer, D, kv.stored, at, keys, values);
  }
}

// Lay out keys [from, to) of the chunk that starts at key `base`; `from` is a multiple of 16. Lanes past `to`, up to the next
// multiple of 16, become zero: their weight is zero, and zero times what lies in an unwritten page need not be.
// heads_to_touch: bring this head and its neighbours into the cache first.
template <class Math>
INLINE void pack_chunk(const KVShape& kv, const KVLayer& layer, const int32_t* table, int g, int base, int from, int to,
                       ChunkScratch<Math>& scratch, int heads_to_touch) {
  if (heads_to_touch) touch(kv, layer, table, g, heads_to_touch, base + from, base + to);
  switch (kv.type) {
    case KV_BF16: return pack_chunk_of<Math, KV_BF16>(kv, layer, table, g, base, from, to, scratch);
    case KV_INT8: return pack_chunk_of<Math, KV_INT8>(kv, layer, table, g, base, from, to, scratch);
    default:
      if constexpr (Math::PACK == 1) pack_chunk_of<Math, KV_F32>(kv, layer, table, g, base, from, to, scratch);
  }
}

// What a query got from a chunk, or from all chunks so far. `o` is [D], not yet divided by l.
struct Partial {
  float m, l;
  float* o;
};

// Scores of BLOCKS neighbouring key blocks for NQ queries. Sums run over the head's dimensions in order.
template <class Math, int NQ, int BLOCKS>
INLINE void score_blocks(const u8x64* keys, int steps, const Query* queries, float* scores, int first_block) {
  const typename Math::Element* q[NQ];
  for (int i = 0; i < NQ; i++) q[i] = (const typename Math::Element*)queries[i].q;
  f32x16 sums[NQ][BLOCKS] = {};
  for (int step = 0; step < steps; step++) {
#pragma GCC unroll 6
    for (int i = 0; i < NQ; i++) {
      const auto x = Math::spread(q[i] + step * Math::PACK);
#pragma GCC unroll 4
      for (int j = 0; j < BLOCKS; j++) sums[i][j] = Math::dot(sums[i][j], keys[size_t(first_block + j) * steps + step], x);
    }
  }
  for (int i = 0; i < NQ; i++)
    for (int j = 0; j < BLOCKS; j++) store(scores + i * CHUNK + (first_block + j) * LANES, sums[i][j]);
}

// How results of the chunks before and of this one meet: see fold.
struct Meeting {
  float keep, add;
};

// Weighted sum of values for NQ queries, channels [16 c, 16 (c + COLUMNS)). Sums run over the keys in order. Where FOLDS, what
// `out` holds already is folded with it.
template <class Math, int NQ, int COLUMNS, bool FOLDS>
INLINE void sum_values(const u8x64* values, int D, int num_steps, const typename Math::Element* weights, const Meeting* meetings,
                       Partial* out, int c) {
  f32x16 sums[NQ][COLUMNS] = {};
  for (int step = 0; step < num_steps; step++) {
    const u8x64* row = values + size_t(step) * (D / LANES) + c;
#pragma GCC unroll 6
    for (int i = 0; i < NQ; i++) {
      const auto x = Math::spread(weights + i * CHUNK + step * Math::PACK);
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; j++) sums[i][j] = Math::dot(sums[i][j], row[j], x);
    }
  }
  for (int i = 0; i < NQ; i++)
    for (int j = 0; j < COLUMNS; j++) {
      float* o = out[i].o + (c + j) * LANES;
      store(o, FOLDS ? fma(sums[i][j], splat(meetings[i].add), load(o) * meetings[i].keep) : sums[i][j]);
    }
}

// The largest score of one query, at [base, base + 16 num_blocks), where it sees anything, else -inf. Writes scores back as they
// count: scaled, capped, -inf where nothing is seen. Where SCALED, a key's scale belongs to its score.
template <bool SCALED>
INLINE float prepare_scores(const Query& q, float soft_cap, int base, int num_blocks, float* scores, const float* key_scales) {
  f32x16 largest = splat(-INFINITY);
  if (!SCALED && soft_cap == 0 && sees_all(q, base) && sees_all(q, base + (num_blocks - 1) * LANES)) {
    for (int b = 0; b < num_blocks; b++) largest = maximum(largest, load(scores + b * LANES));
    return max_lanes(largest);
  }
  for (int b = 0; b < num_blocks; b++) {
    f32x16 x = load(scores + b * LANES);
    if constexpr (SCALED) x = x * load(key_scales + b * LANES);
    if (soft_cap > 0) x = soft_cap * tanh_of(x / soft_cap);
    if (!sees_all(q, base + b * LANES)) x = select(visible_lanes(q, base + b * LANES), x, splat(-INFINITY));
    largest = maximum(largest, x);
    store(scores + b * LANES, x);
  }
  return max_lanes(largest);
}

// Scores -> weights e^(score - m); writes m and l. Where SCALED, a value's scale belongs to the weight that meets it, not to l.
// Queries take turns within a block: one alone would wait for its own results most of the time.
template <class Math, int NQ, bool SCALED>
void weigh(const Query* queries, float soft_cap, int base, int num_blocks, ChunkScratch<Math>& s, Partial* out) {
  float m[NQ];
  for (int i = 0; i < NQ; i++) {
    out[i].m = prepare_scores<SCALED>(queries[i], soft_cap, base, num_blocks, s.scores + i * CHUNK, s.key_scales);
    m[i] = out[i].m == -INFINITY ? 0.0f : out[i].m;  // nothing visible: the weights must be 0, not e^(inf - inf)
  }
  f32x16 sums[NQ] = {};
  for (int b = 0; b < num_blocks; b++) {
#pragma GCC unroll 6
    for (int i = 0; i < NQ; i++) {
      f32x16 w = exponential_of_negative(load(s.scores + i * CHUNK + b * LANES) - m[i]);
      sums[i] = sums[i] + w;
      if constexpr (SCALED) w = w * load(s.value_scales + b * LANES);
      Math::put(s.weights + i * CHUNK + b * LANES, w);
    }
  }
  for (int i = 0; i < NQ; i++) out[i].l = sum_lanes(sums[i]);
}

// Folds m and l of NQ fresh chunk results into `total`; the outputs follow in sum_values. One exponential serves all.
template <int NQ>
INLINE void meet(const Partial* fresh, Partial* total, Meeting* meetings) {
  float less[LANES] = {};
  for (int i = 0; i < NQ; i++) {
    const float m = total[i].m > fresh[i].m ? total[i].m : fresh[i].m;
    less[i] = total[i].m - m, less[8 + i] = fresh[i].m - m;
  }
  store(less, exponential(load(less)));
  for (int i = 0; i < NQ; i++) {
    if (fresh[i].m == -INFINITY) {  // nothing to see here
      meetings[i] = {1.0f, 0.0f};
      continue;
    }
    meetings[i] = {less[i], less[8 + i]};
    total[i].m = total[i].m > fresh[i].m ? total[i].m : fresh[i].m;
    total[i].l = total[i].l * less[i] + fresh[i].l * less[8 + i];
  }
}

// One tile of NQ queries against the packed chunk that starts at key `base` and holds `num_keys` keys. Keys behind the last
// that any of the queries sees are passed over: they would weigh nothing.
template <class Math, int NQ, bool FOLDS>
void attend_tile(const KVShape& kv, const Query* queries, float soft_cap, int base, int num_keys, ChunkScratch<Math>& s,
                 Partial* out) {
  int seen = 0;
  for (int i = 0; i < NQ; i++) seen = std::max(seen, queries[i].high - base);
  num_keys = std::min(num_keys, seen);
  if (num_keys <= 0) {
    if (!FOLDS)
      for (int i = 0; i < NQ; i++) out[i].m = -INFINITY, out[i].l = 0;
    return;
  }
  const int num_blocks = (num_keys + LANES - 1) / LANES, steps = kv.D / Math::PACK;
  int b = 0;
  for (; b + 4 <= num_blocks; b += 4) score_blocks<Math, NQ, 4>(s.keys, steps, queries, s.scores, b);
  for (; b < num_blocks; b++) score_blocks<Math, NQ, 1>(s.keys, steps, queries, s.scores, b);
  Partial fresh[NQ];
  if (kv.type == KV_INT8)
    weigh<Math, NQ, true>(queries, soft_cap, base, num_blocks, s, fresh);
  else
    weigh<Math, NQ, false>(queries, soft_cap, base, num_blocks, s, fresh);
  Meeting meetings[NQ];
  if (FOLDS)
    meet<NQ>(fresh, out, meetings);
  else
    for (int i = 0; i < NQ; i++) out[i].m = fresh[i].m, out[i].l = fresh[i].l;
  const int value_steps = num_blocks * LANES / Math::PACK, columns = kv.D / LANES;
  int c = 0;
  for (; c + 4 <= columns; c += 4) sum_values<Math, NQ, 4, FOLDS>(s.values, kv.D, value_steps, s.weights, meetings, out, c);
  for (; c < columns; c++) sum_values<Math, NQ, 1, FOLDS>(s.values, kv.D, value_steps, s.weights, meetings, out, c);
}

// Results of a chunk for any number of queries, put into `out`; or, where FOLDS, folded with what the chunks before left there.
template <class Math, bool FOLDS>
INLINE void attend_chunk(const KVShape& kv, const Query* queries, int num_queries, float soft_cap, int base, int num_keys,
                         ChunkScratch<Math>& s, Partial* out) {
  for (int i = 0; i < num_queries; i += QUERY_TILE) {
    const Query* q = queries + i;
    switch (num_queries - i) {
      case 1: attend_tile<Math, 1, FOLDS>(kv, q, soft_cap, base, num_keys, s, out + i); break;
      case 2: attend_tile<Math, 2, FOLDS>(kv, q, soft_cap, base, num_keys, s, out + i); break;
      case 3: attend_tile<Math, 3, FOLDS>(kv, q, soft_cap, base, num_keys, s, out + i); break;
      case 4: attend_tile<Math, 4, FOLDS>(kv, q, soft_cap, base, num_keys, s, out + i); break;
      case 5: attend_tile<Math, 5, FOLDS>(kv, q, soft_cap, base, num_keys, s, out + i); break;
      default: attend_tile<Math, 6, FOLDS>(kv, q, soft_cap, base, num_keys, s, out + i);
    }
  }
}

// total <- total and next, where `next` is the chunk after all those in `total`. An empty total has m = -inf, l = 0, o = 0.
INLINE void fold(Partial& total, const Partial& next, int D) {
  if (next.m == -INFINITY) return;
  const float m = total.m > next.m ? total.m : next.m;
  const float keep = exponential(total.m - m), add = exponential(next.m - m);
  total.m = m;
  total.l = total.l * keep + next.l * add;
  for (int d = 0; d < D; d += LANES) store(total.o + d, fma(load(next.o + d), splat(add), load(total.o + d) * keep));
}

}  // namespace ramet
