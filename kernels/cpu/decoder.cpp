// A whole decoder-only transformer for CPUs behind a plain C interface: called with pointers, once a step.
//
// One call computes all layers for all rows of a step. Each layer is six phases (pool.h); every activation stays in buffers
// that are allocated once and only ever grow:
//
//   norm      x (+ what the layer before added) -> normed, quantised            unit: rows
//   qkv       projection, bias, head norm, rotation, keys and values to pages   unit: row block x head
//   attend    a chunk of keys x the queries that look at it (attention.h)       unit: row or fork group x chunk x kv head
//   output    projection, added to x                                            unit: row block x columns
//   norm                                                                        unit: rows
//   gate_up   two projections, activation, quantised                            unit: row block x columns
//   down      projection, added to x                                            unit: row block x columns
//
// The stream x is float. Letters: T tokens of the step, M rows of a product, R sequences, H query and G key/value heads,
// D head size, d hidden size, F feed-forward size, V vocabulary, S page size, N pages.
//
// Errors are negative return codes; ramet_error() has the words.
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "attention.h"
#include "ceilings.h"
#include "gemm.h"
#include "pack.h"
#include "pool.h"
#include "rotation.h"

using namespace ramet;

extern "C" {

struct RametConfig {
  int32_t num_layers, hidden, feed_forward, num_heads, num_kv_heads, head_dim, vocabulary;
  int32_t is_gelu;          // activation of the gate: tanh-approximated GELU, else SiLU
  int32_t embedding_source; // a Source of pack.h, or FROM_Q8_0 blocks
  int32_t num_threads;
  int32_t stored_head_dim;  // channels of a head in the pool and in rotary tables; head_dim is that, up to a multiple of 32
  float eps, attention_scale, attention_softcap, final_softcap, embedding_scale;
};

// One layer's small tensors, float32; null where the family has none.
struct RametLayer {
  const float* input_norm;         // [d]
  const float* feed_forward_norm;  // [d]
  const float* after_attention;    // [d]  Gemma: norm of what attention adds
  const float* after_feed_forward; // [d]
  const float* query_norm;         // [D]
  const float* key_norm;           // [D]
  const float* rope;               // [M, 2, D/2]  cosines, then sines
  int32_t num_positions;           // M
  int32_t window;                  // 0: none
};

struct RametStep {
  int32_t num_rows, num_tokens, num_outputs, table_width;  // R, T, O, P
  const int64_t* tokens;           // [T]
  const int64_t* positions;        // [T]
  const int32_t* query_offsets;    // [R + 1]
  const int32_t* context_lengths;  // [R]
  const int32_t* page_tables;      // [R, P]
  const int64_t* slots;            // [T]
  const int64_t* output_rows;      // [O]
  const uint8_t* const* trees;     // [R] null or [n, n], or null altogether
  int32_t num_groups;
  const int32_t* group_offsets;    // [num_groups + 1] into group_rows
  const int32_t* group_rows;
  const int32_t* group_shared;     // [num_groups] tokens
  const KVLayer* kv;               // [layers]
  int32_t kv_type, page_size, num_pages;
  float* logits;                   // [O, V]
};

struct RametStatistics {
  int64_t steps, sleeps, active_threads, weight_bytes, kv_tokens_read, kv_tokens_seen, kv_bytes_read;
  double seconds[8];  // per kind of phase, on the calling thread: see PHASE_NAMES in native.py
};

}  // extern "C"

namespace {

thread_local std::string error_text;
int fail(int code, std::string text) {
  error_text = std::move(text);
  return code;
}

enum Slot { Q = 0, KEY, VALUE, OUT, GATE, UP, DOWN, NUM_SLOTS };
enum PhaseKind { P_EMBED = 0, P_NORM, P_QKV, P_ATTEND, P_OUTPUT, P_GATE_UP, P_DOWN, P_HEAD };

constexpr int DECODE_TOKENS = 16;   // rows with at most so many new tokens split their keys over the threads
constexpr int BLOCK_QUERIES = 192;  // query vectors (tokens x heads of a group) of a longer row's unit, at most: a chunk is packed once for all
constexpr int LEAST_BLOCK_QUERIES = 48;  // fewer are not worth the packing
constexpr int ROW_BLOCK = 192;      // rows of a row block, about: its activations stay in the second-level cache

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory on huge pages where the system has them: streaming weights through 4 KiB pages costs a TLB miss per 4 KiB.
struct Buffer {
  void* data = nullptr;
  size_t size = 0;
  ~Buffer() { release(); }
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  void release() {
    if (data) munmap(data, size);
    data = nullptr, size = 0;
  }
  void* at_least(size_t bytes) {
    if (bytes <= size) return data;
    release();
    const size_t huge = size_t(2) << 20, wanted = bytes >= huge ? (bytes + huge - 1) / huge * huge : (bytes + 4095) / 4096 * 4096;
    void* p = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (bytes >= huge) madvise(p, wanted, MADV_HUGEPAGE);
#endif
    data = p, size = wanted;
    return p;
  }
};

// Memory that only grows: matrices one after the other on shared huge pages, each on its own cache line.
struct Arena {
  static constexpr size_t BLOCK = size_t(64) << 20, HUGE_PAGE = size_t(2) << 20;
  std::vector<std::unique_ptr<Buffer>> blocks;
  uint8_t *next = nullptr, *end = nullptr;
  uint8_t* take(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (size_t(end - next) < bytes) {
      blocks.push_back(std::make_unique<Buffer>());
      const size_t size = std::max(BLOCK, bytes) + HUGE_PAGE;
      uint8_t* raw = (uint8_t*)blocks.back()->at_least(size);
      next = (uint8_t*)((uintptr_t(raw) + HUGE_PAGE - 1) & ~uintptr_t(HUGE_PAGE - 1)), end = raw + size;
    }
    uint8_t* at = next;
    next += bytes;
    return at;
  }
};

// Rows that are served together for the keys they share; a row alone is a set of one that shares nothing.
struct RowSet {
  std::vector<int> rows;
  int shared = 0;
};
struct AttendUnit {
  int set, chunk, g, num_heads;       // a chunk of a set's keys, kv heads [g, g + num_heads) ...
  int row = -1, first = 0, last = 0;  // ... or, where row >= 0, new tokens [first, last) of one row against all its keys
};
// How attention is cut for one width of window.
struct AttendPlan {
  int window = 0;
  std::vector<AttendUnit> units;
  std::vector<int> first_chunk, num_chunks;  // [R] of rows that split their keys
  std::vector<size_t> partial_base;          // [T] in chunks
  size_t num_partials = 0;
};

// Everything about a step that a late thread may still look at; kept alive by the job that was made of it.
struct StepPlan {
  std::vector<AttendPlan> plans;   // per width of window
  std::vector<RowSet> sets;        // fork groups, then rows alone
  std::vector<int> alone;          // [R] the set that holds just this row
  std::vector<uint8_t> is_asked;   // per tile: has a row whose logits are asked for; of the others, the last layer makes keys and values only
};

struct Thread {
  Buffer memory;
  ChunkScratch<BFloat16Math> b;
  ChunkScratch<FloatMath> f;
  float* tile;          // [TILE_ROWS][D] of a head
  float* block_o;       // [BLOCK][D] running output of a query block
  std::vector<Query> queries;
  std::vector<Partial> fresh, total;
  int64_t kv_bytes_read = 0;  // of keys and values laid out for products, all layers and heads: what attention reads pages for
};

struct Model {
  RametConfig c;
  std::vector<RametLayer> layers;
  std::vector<Matrix> matrices;  // [layers][NUM_SLOTS], then the head
  Arena weights;
  const float* final_norm = nullptr;
  const uint8_t* embedding = nullptr;
  std::unique_ptr<Team> team;
  std::vector<std::unique_ptr<Thread>> threads;
  std::mutex busy;
  RametStatistics statistics{};

  // buffers of a step
  Buffer x_memory, added_memory, query_memory, a_memory, o_memory, f_memory, h_memory, partial_memory;
  float *x = nullptr, *added = nullptr;
  void* queries = nullptr;
  Activations a, o, f, h;  // inputs of qkv and gate_up; of output; of down; of the head
  std::vector<int> windows;        // the widths that layers have
  std::vector<int> plan_of_layer;  // index into windows, and into StepPlan::plans
  std::unique_ptr<std::atomic<int>[]> done_chunks;  // [R, G]
  size_t num_done_chunks = 0;
  float* partials = nullptr;

  ~Model() { team.reset(); }  // first of all: a late thread may still walk through what is declared after it

  Matrix& matrix(int layer, int slot) { return matrices[size_t(layer) * NUM_SLOTS + slot]; }
  Matrix& head() { return matrices.back(); }
  bool bf16_attention(const RametStep& s) const {
#if defined(__AVX512BF16__)
    return s.kv_type != KV_F32;
#else
    (void)s;
    return false;
#endif
  }
};

// ---- which forms of an input its readers want

void want(int format, bool (&forms)[3]) { forms[format == BF16 ? 1 : (format == F32 ? 2 : 0)] = true; }

Activations lay_out(Buffer& memory, int M, int K, const bool (&forms)[3]) {
  Activations a;
  a.K = K;
  const size_t n = size_t(M) * K;
  uint8_t* p = (uint8_t*)memory.at_least(n * 7 + n / 4 + 256);
  if (forms[2]) a.f = (float*)p, p += n * 4;
  if (forms[1]) a.b = (uint16_t*)p, p += n * 2;
  if (forms[0]) a.q = (int8_t*)p, p += n, a.scale = (Scale*)p;
  return a;
}

// ---- rows

// out = x / rms(x) * weight, by blocks of 32 into the forms that are wanted.
void norm_row(const float* x, const float* weight, int d, float eps, const Activations& out, const Tiles& tiles, int row) {
  const int tile = tiles.tile_of(row), first = tiles.first(tile), h = tiles.height(tile);
  f32x16 low = {}, high = {};
  for (int k = 0; k < d; k += 32) {
    const f32x16 p = load(x + k), q = load(x + k + 16);
    low = fma(p, p, low), high = fma(q, q, high);
  }
  const float scale = 1.0f / std::sqrt(sum_lanes(low + high) / d + eps);
  for (int k = 0; k < d; k += 32)
    out.put(first, h, row - first, k / 32, load(x + k) * scale * load(weight + k), load(x + k + 16) * scale * load(weight + k + 16));
}
// x += added / rms(added) * weight
void add_normed(float* x, const float* added, const float* weight, int d, float eps) {
  f32x16 low = {}, high = {};
  for (int k = 0; k < d; k += 32) {
    const f32x16 p = load(added + k), q = load(added + k + 16);
    low = fma(p, p, low), high = fma(q, q, high);
  }
  const float scale = 1.0f / std::sqrt(sum_lanes(low + high) / d + eps);
  for (int k = 0; k < d; k += 16) store(x + k, fma(load(added + k) * scale, load(weight + k), load(x + k)));
}
void norm_head(float* x, const float* weight, int D, int stored, float eps) {
  f32x16 sum = {};
  for (int k = 0; k < D; k += 16) sum = fma(load(x + k), load(x + k), sum);
  const float scale = 1.0f / std::sqrt(sum_lanes(sum) / stored + eps);
  for (int k = 0; k < D; k += 16) store(x + k, load(x + k) * scale * load(weight + k));
}
void rotate(float* x, const float* table, int D) {
  const int half = D / 2;
  if (half % LANES) {
    for (int i = 0; i < half; i++) {
      const float p = x[i], q = x[half + i], cos = table[i], sin = table[half + i];
      x[i] = __builtin_fmaf(p, cos, -(q * sin)), x[half + i] = __builtin_fmaf(q, cos, p * sin);
    }
    return;
  }
  for (int i = 0; i < half; i += 16) {
    const f32x16 p = load(x + i), q = load(x + half + i), cos = load(table + i), sin = load(table + half + i);
    store(x + i, fma(p, cos, -(q * sin)));
    store(x + half + i, fma(q, cos, p * sin));
  }
}
void embed_row(const Model& m, int64_t token, float* x) {
  const int d = m.c.hidden;
  const uint8_t* row = m.embedding + source_row_bytes(m.c.embedding_source, d) * size_t(token);
  for (int k = 0; k < d; k += 16) {
    f32x16 v;
    switch (m.c.embedding_source) {
      case FROM_F32: v = load((const float*)row + k); break;
      case FROM_BF16: v = load_bf16((const uint16_t*)row + k); break;
      case FROM_F16: v = load_half((const uint16_t*)row + k); break;
      default: {
        const uint8_t* block = row + k / 32 * 34;
        v = to_float(widen(load_as<i8x16>(block + 2 + k % 32))) * half_to_float(load_as<uint16_t>(block));
      }
    }
    store(x + k, v * m.c.embedding_scale);
  }
}
// Sixteen numbers of a row that ends `left` numbers from here.
template <class V, class T>
void store_part(T* out, V v, int left) {
  if (left >= LANES)
    store_as(out, v);
  else
    std::memcpy(out, &v, sizeof(T) * left);
}
// One head's new key or value into its slot; x is working memory.
void write_kv(const KVShape& kv, void* pages, uint16_t* scales, int64_t slot, int g, float* x) {
  const size_t at = kv.at(slot, g);
  if (kv.type == KV_F32) {
    std::memcpy((float*)pages + at, x, sizeof(float) * kv.stored);
  } else if (kv.type == KV_BF16) {
    for (int i = 0; i < kv.stored; i += 16) store_part((uint16_t*)pages + at + i, to_bf16(load(x + i)), kv.stored - i);
  } else {
    rotate_head(x, kv.D, kv.stored);
    f32x16 largest = {};
    for (int i = 0; i < kv.D; i += 16) largest = maximum(largest, absolute(load(x + i)));
    const uint16_t half = float_to_half(max_lanes(largest) / 127.0f);
    const float scale = half_to_float(half), inverse = scale > 0 ? 1.0f / scale : 0.0f;
    scales[at / kv.stored] = half;
    // the scale was rounded: the largest code may come to 127.06
    const auto code = [&](f32x16 v) { return minimum(maximum(v * inverse, splat(-127.0f)), splat(127.0f)); };
    for (int i = 0; i < kv.stored; i += 16)
      store_part((int8_t*)pages + at + i, narrow(round_to_int(code(load(x + i)))), kv.stored - i);
  }
}

// ---- cutting a product into units: row blocks x column ranges

struct Cut {
  int row_blocks, column_units, columns_per_unit, columns, tiles_per_block;
  // `columns` items (pairs of panels, heads, blocks of 32). Few rows: some three units a thread, each a long stream of weights.
  // Many: so small that what is left at the end is small too.
  Cut(const Tiles& tiles, int columns, int threads) : columns(columns), tiles_per_block(ROW_BLOCK / TILE_ROWS) {
    row_blocks = std::max(1, (tiles.count + tiles_per_block - 1) / tiles_per_block);
    const int wanted = std::max(1, (tiles.M <= 8 ? 3 : 16) * threads / row_blocks);
    columns_per_unit = std::max(1, (columns + wanted - 1) / wanted);
    if (tiles.M > 8) columns_per_unit = std::min(columns_per_unit, 8);
    column_units = (columns + columns_per_unit - 1) / columns_per_unit;
  }
  int units() const { return row_blocks * column_units; }
  template <class F>
  void each(int unit, const Tiles& tiles, F&& body) const {
    const int block = unit / column_units, column = unit % column_units * columns_per_unit;
    const int last_tile = std::min(tiles.count, (block + 1) * tiles_per_block);
    for (int c = column; c < std::min(columns, column + columns_per_unit); c++)
      for (int t = block * tiles_per_block; t < last_tile; t++) body(c, tiles.first(t), tiles.height(t));
  }
};

// ---- phases of a layer

struct Walk {
  Model& m;
  RametStep s;  // its pointers are valid while a unit runs, and no longer
  std::shared_ptr<const StepPlan> plan;
  Tiles tiles, output_tiles;
  KVShape kv;
  int threads;
};

void qkv_unit(const Walk& w, int layer, Thread& t, int head, int first, int h) {
  Model& m = w.m;
  const RametLayer& l = m.layers[layer];
  const int H = m.c.num_heads, G = m.c.num_kv_heads, D = m.c.head_dim, pairs = D / PAIR;
  const int slot = head < H ? Q : (head < H + G ? KEY : VALUE), index = slot == Q ? head : (head - H) % G;
  const Matrix& matrix = m.matrix(layer, slot);
  float out[TILE_ROWS * PAIR];
  for (int pair = 0; pair < pairs; pair++) {
    multiply(matrix, index * pairs + pair, m.a, first, h, out);
    for (int p = 0; p < 2; p++)
      for (int i = 0; i < h; i++) store(t.tile + i * D + pair * PAIR + p * LANES, load(out + (p * h + i) * LANES));
  }
  const KVLayer& pages = w.s.kv[layer];
  for (int i = 0; i < h; i++) {
    float* x = t.tile + i * D;
    const int token = first + i;
    if (slot == VALUE) {
      write_kv(w.kv, pages.values, pages.value_scales, w.s.slots[token], index, x);
      continue;
    }
    const float* norm = slot == Q ? l.query_norm : l.key_norm;
    if (norm) norm_head(x, norm, D, w.kv.stored, m.c.eps);
    rotate(x, l.rope + size_t(w.s.positions[token]) * w.kv.stored, w.kv.stored);
    if (slot == KEY) {
      write_kv(w.kv, pages.keys, pages.key_scales, w.s.slots[token], index, x);
    } else {
      if (w.kv.type == KV_INT8) rotate_head(x, D, w.kv.stored);
      const size_t at = (size_t(token) * H + index) * D;
      for (int k = 0; k < D; k += 16) {
        const f32x16 q = load(x + k) * m.c.attention_scale;
        if (m.bf16_attention(w.s))
          store_as((uint16_t*)m.queries + at + k, to_bf16(q));
        else
          store((float*)m.queries + at + k, q);
      }
    }
  }
}

// What token `token` (the i-th new one of row r) may see.
Query query_of(const Walk& w, const AttendPlan& plan, int r, int i, int token, int head) {
  const RametStep& s = w.s;
  const int n = s.query_offsets[r + 1] - s.query_offsets[r], start = s.context_lengths[r] - n;
  const size_t at = (size_t(token) * w.m.c.num_heads + head) * w.m.c.head_dim;
  Query q{};
  q.q = w.m.bf16_attention(s) ? (const void*)((const uint16_t*)w.m.queries + at) : (const void*)((const float*)w.m.queries + at);
  const uint8_t* tree = s.trees ? s.trees[r] : nullptr;
  q.high = tree ? start + n : start + i + 1;
  int64_t position = start + i;
  if (tree) {
    q.tree = tree + size_t(i) * n, q.start = start, q.window = plan.window;
    q.positions = s.positions + s.query_offsets[r];
    position = q.position = s.positions[token];
  }
  q.low = plan.window ? int(std::max<int64_t>(0, position - plan.window + 1)) : 0;
  return q;
}

void put_output(const Walk& w, int token, int head, const Partial& p) {
  const int D = w.m.c.head_dim, tile = w.tiles.tile_of(token), first = w.tiles.first(tile), h = w.tiles.height(tile);
  const float inverse = p.l > 0 ? 1.0f / p.l : 0.0f;
  if (w.kv.type == KV_INT8) rotate_head(p.o, D, w.kv.stored);  // back
  for (int k = 0; k < D; k += 32)
    w.m.o.put(first, h, token - first, (head * D + k) / 32, load(p.o + k) * inverse, load(p.o + k + 16) * inverse);
}

// A partial's place: m and l, then o, 64-byte aligned.
Partial stored(float* base, size_t index, int D) {
  float* p = base + index * (D + LANES);
  return Partial{p[0], p[1], p + LANES};
}

// All chunks of this row and kv head are there: fold them in order.
void finish_row(const Walk& w, const AttendPlan& plan, int r, int g, Thread& t) {
  const int H = w.m.c.num_heads, D = w.m.c.head_dim, share = H / w.m.c.num_kv_heads;
  for (int token = w.s.query_offsets[r]; token < w.s.query_offsets[r + 1]; token++)
    for (int head = g * share; head < (g + 1) * share; head++) {
      Partial total{-INFINITY, 0.0f, t.block_o};
      for (int d = 0; d < D; d += LANES) store(total.o + d, f32x16{});
      for (int c = 0; c < plan.num_chunks[r]; c++)
        fold(total, stored(w.m.partials, (plan.partial_base[token] + c) * H + head, D), D);
      put_output(w, token, head, total);
    }
}

// Lay out keys of a chunk, and count what that reads.
template <class Math>
void read_chunk(const Walk& w, int layer, int row, int g, int base, int from, int to, Thread& t, ChunkScratch<Math>& scratch, int ask) {
  const RametStep& s = w.s;
  pack_chunk<Math>(w.kv, s.kv[layer], s.page_tables + size_t(row) * s.table_width, g, base, from, to, scratch, ask);
  t.kv_bytes_read += int64_t(to - from) * w.kv.head_bytes() * 2;
}

template <class Math>
void attend_set_chunk(const Walk& w, const AttendPlan& plan, int layer, AttendUnit u, int first_g, Thread& t, ChunkScratch<Math>& scratch) {
  Model& m = w.m;
  const RametStep& s = w.s;
  const RowSet& set = w.plan->sets[u.set];
  const int H = m.c.num_heads, D = m.c.head_dim, share = H / m.c.num_kv_heads, base = u.chunk * CHUNK;
  const int ask = u.g == first_g ? u.num_heads : 0;  // the first head asks for the others' lines too: they are neighbours
  // keys that all rows of the set have here, whole blocks of 16; what lies beyond belongs to each row
  const int common = std::clamp(set.shared - base, 0, CHUNK) / LANES * LANES;
  const int lead = set.rows[0];
  if (common) read_chunk(w, layer, lead, u.g, base, 0, common, t, scratch, ask);
  const bool counts = layer == 0 && u.g == 0;
  int64_t num_read = common, num_seen = 0;
  for (int r : set.rows) {
    const int here = std::min(CHUNK, s.context_lengths[r] - base);
    if (here <= 0 || u.chunk < plan.first_chunk[r]) continue;
    if (here > common) {
      read_chunk(w, layer, r, u.g, base, common, here, t, scratch, ask);
      num_read += here - common;
    }
    num_seen += here;
    t.queries.clear(), t.fresh.clear();
    for (int token = s.query_offsets[r], i = 0; token < s.query_offsets[r + 1]; token++, i++)
      for (int head = u.g * share; head < (u.g + 1) * share; head++) {
        t.queries.push_back(query_of(w, plan, r, i, token, head));
        const size_t index = (plan.partial_base[token] + u.chunk - plan.first_chunk[r]) * H + head;
        t.fresh.push_back(Partial{0, 0, m.partials + index * (D + LANES) + LANES});
      }
    attend_chunk<Math, false>(w.kv, t.queries.data(), int(t.queries.size()), m.c.attention_softcap, base, here, scratch, t.fresh.data());
    for (Partial& p : t.fresh) p.o[-LANES] = p.m, p.o[-LANES + 1] = p.l;
    std::atomic<int>& done = m.done_chunks[size_t(r) * m.c.num_kv_heads + u.g];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == plan.num_chunks[r]) {
      done.store(0, std::memory_order_relaxed);  // ready for the next layer
      finish_row(w, plan, r, u.g, t);
    }
  }
  if (counts) {
    __atomic_fetch_add(&m.statistics.kv_tokens_read, num_read, __ATOMIC_RELAXED);
    __atomic_fetch_add(&m.statistics.kv_tokens_seen, num_seen, __ATOMIC_RELAXED);
  }
}

template <class Math>
void attend_heads(const Walk& w, const AttendPlan& plan, int layer, AttendUnit u, Thread& t, ChunkScratch<Math>& scratch) {
  for (const int first = u.g; u.g < first + u.num_heads; u.g++) attend_set_chunk<Math>(w, plan, layer, u, first, t, scratch);
}

template <class Math>
void attend_block(const Walk& w, const AttendPlan& plan, int layer, const AttendUnit& u, Thread& t, ChunkScratch<Math>& scratch) {
  Model& m = w.m;
  const RametStep& s = w.s;
  const int D = m.c.head_dim, share = m.c.num_heads / m.c.num_kv_heads, offset = s.query_offsets[u.row];
  t.queries.clear(), t.total.clear();
  int low = INT32_MAX, high = 0;
  for (int i = u.first; i < u.last; i++)
    for (int head = u.g * share; head < (u.g + 1) * share; head++) {
      t.queries.push_back(query_of(w, plan, u.row, i, offset + i, head));
      const size_t n = t.total.size();
      t.total.push_back(Partial{-INFINITY, 0, t.block_o + n * D});
      for (int d = 0; d < D; d += LANES) store(t.total[n].o + d, f32x16{});
      low = std::min(low, t.queries[n].low), high = std::max(high, t.queries[n].high);
    }
  for (int chunk = low / CHUNK; chunk * CHUNK < high; chunk++) {
    const int base = chunk * CHUNK, here = std::min(CHUNK, high - base);
    read_chunk(w, layer, u.row, u.g, base, 0, here, t, scratch, 1);
    attend_chunk<Math, true>(w.kv, t.queries.data(), int(t.queries.size()), m.c.attention_softcap, base, here, scratch, t.total.data());
    if (layer == 0 && u.g == 0) __atomic_fetch_add(&m.statistics.kv_tokens_read, here, __ATOMIC_RELAXED);
  }
  for (int i = u.first, n = 0; i < u.last; i++)
    for (int head = u.g * share; head < (u.g + 1) * share; head++, n++) put_output(w, offset + i, head, t.total[n]);
}

void attend_unit(const Walk& w, const AttendPlan& plan, int layer, const AttendUnit& u, Thread& t) {
  if (w.m.bf16_attention(w.s)) {
    if (u.row < 0)
      attend_heads<BFloat16Math>(w, plan, layer, u, t, t.b);
    else
      attend_block<BFloat16Math>(w, plan, layer, u, t, t.b);
  } else {
    if (u.row < 0)
      attend_heads<FloatMath>(w, plan, layer, u, t, t.f);
    else
      attend_block<FloatMath>(w, plan, layer, u, t, t.f);
  }
}

// x (or, where the family norms what a layer adds, `added`) += a product's tile.
void add_tile(const Walk& w, const Matrix& matrix, const Activations& input, int pair, int first, int h, bool separate) {
  float out[TILE_ROWS * PAIR];
  const int d = w.m.c.hidden;
  float* x = (separate ? w.m.added : w.m.x) + size_t(first) * d + pair * PAIR;
  for (int i = 0; i < h; i++)
    for (int p = 0; p < 2; p++) __builtin_prefetch(x + size_t(i) * d + p * LANES, 1);  // here by the time the product is
  multiply(matrix, pair, input, first, h, out);
  for (int i = 0; i < h; i++)
    for (int p = 0; p < 2; p++) {
      const f32x16 v = load(out + (p * h + i) * LANES);
      float* at = x + size_t(i) * d + p * LANES;
      store(at, separate ? v : load(at) + v);
    }
}

// Thirty-two columns of the feed-forward: gate and up, activation, into the input of `down`.
void gate_up_tile(const Walk& w, int layer, int block, int first, int h) {
  Model& m = w.m;
  float gates[TILE_ROWS * PAIR], ups[TILE_ROWS * PAIR];
  multiply(m.matrix(layer, GATE), block, m.a, first, h, gates);
  multiply(m.matrix(layer, UP), block, m.a, first, h, ups);
  for (int i = 0; i < h; i++) {
    f32x16 v[2];
    for (int p = 0; p < 2; p++) {
      const f32x16 gate = load(gates + (p * h + i) * LANES), up = load(ups + (p * h + i) * LANES);
      v[p] = (m.c.is_gelu ? gelu_tanh(gate) : silu(gate)) * up;
    }
    m.f.put(first, h, i, block, v[0], v[1]);
  }
}

void head_tile(const Walk& w, int pair, int first, int h) {
  Model& m = w.m;
  float out[TILE_ROWS * PAIR];
  multiply(m.head(), pair, m.h, first, h, out);
  const int V = m.c.vocabulary;
  for (int p = 0; p < 2; p++)
    for (int i = 0; i < h; i++) {
      f32x16 v = load(out + (p * h + i) * LANES);
      if (m.c.final_softcap > 0) v = m.c.final_softcap * tanh_of(v / m.c.final_softcap);
      const int column = pair * PAIR + p * LANES;
      if (column < V) store_part(w.s.logits + size_t(first + i) * V + column, v, V - column);
    }
}

// ---- the walk

bool is_asked(const Walk& w, int layer, int token) {
  return layer + 1 < w.m.c.num_layers || w.plan->is_asked[w.tiles.tile_of(token)];
}
bool is_asked(const Walk& w, int layer, const AttendUnit& u) {
  if (u.row < 0 || layer + 1 < w.m.c.num_layers) return true;
  for (int i = u.first; i < u.last; i++)
    if (is_asked(w, layer, w.s.query_offsets[u.row] + i)) return true;
  return false;
}

int rows_per_unit(int rows, int threads) { return std::max(1, std::min(32, (rows + 2 * threads - 1) / (2 * threads))); }

void walk(const Walk& w, Team& team, Job& job, int thread) {
  Model& m = w.m;
  const RametStep& s = w.s;
  Thread& t = *m.threads[thread];
  const RametConfig& c = m.c;
  const int T = s.num_tokens, d = c.hidden, n = w.threads;
  size_t index = 0;
  double since = thread == 0 ? now() : 0;
  auto phase = [&](PhaseKind kind, int units, auto&& unit) {
    team.phase(job.phases[index++], units, thread, unit);
    if (thread == 0) {
      const double at = now();
      m.statistics.seconds[kind] += at - since, since = at;
    }
  };
  const int step = rows_per_unit(T, n), row_units = (T + step - 1) / step;
  auto rows = [&](auto&& row) {
    return [&, row](int unit) {
      for (int r = unit * step; r < std::min(T, (unit + 1) * step); r++) row(r);
    };
  };
  const float* after = nullptr;  // norm of what the half before added
  for (int layer = 0; layer < c.num_layers; layer++) {
    const RametLayer& l = m.layers[layer];
    phase(layer ? P_NORM : P_EMBED, row_units, rows([&](int r) {
            float* x = m.x + size_t(r) * d;
            if (layer == 0) embed_row(m, s.tokens[r], x);
            else if (after) add_normed(x, m.added + size_t(r) * d, after, d, c.eps);
            norm_row(x, l.input_norm, d, c.eps, m.a, w.tiles, r);
          }));
    const Cut heads(w.tiles, c.num_heads + 2 * c.num_kv_heads, n);
    phase(P_QKV, heads.units(), [&](int u) {
      heads.each(u, w.tiles, [&](int head, int first, int h) {
        if (head >= c.num_heads || is_asked(w, layer, first)) qkv_unit(w, layer, t, head, first, h);
      });
    });
    const AttendPlan& plan = w.plan->plans[m.plan_of_layer[layer]];
    phase(P_ATTEND, int(plan.units.size()), [&](int u) {
      if (is_asked(w, layer, plan.units[u])) attend_unit(w, plan, layer, plan.units[u], t);
    });
    const Cut columns(w.tiles, m.matrix(layer, OUT).num_pairs(), n);
    phase(P_OUTPUT, columns.units(), [&](int u) {
      columns.each(u, w.tiles, [&](int pair, int first, int h) {
        if (is_asked(w, layer, first)) add_tile(w, m.matrix(layer, OUT), m.o, pair, first, h, l.after_attention != nullptr);
      });
    });
    phase(P_NORM, row_units, rows([&](int r) {
            if (!is_asked(w, layer, r)) return;
            float* x = m.x + size_t(r) * d;
            if (l.after_attention) add_normed(x, m.added + size_t(r) * d, l.after_attention, d, c.eps);
            norm_row(x, l.feed_forward_norm, d, c.eps, m.a, w.tiles, r);
          }));
    const Cut blocks(w.tiles, c.feed_forward / 32, n);
    phase(P_GATE_UP, blocks.units(), [&](int u) {
      blocks.each(u, w.tiles, [&](int block, int first, int h) {
        if (is_asked(w, layer, first)) gate_up_tile(w, layer, block, first, h);
      });
    });
    phase(P_DOWN, columns.units(), [&](int u) {
      columns.each(u, w.tiles, [&](int pair, int first, int h) {
        if (is_asked(w, layer, first)) add_tile(w, m.matrix(layer, DOWN), m.f, pair, first, h, l.after_feed_forward != nullptr);
      });
    });
    after = l.after_feed_forward;
  }
  phase(P_NORM, s.num_outputs, [&](int i) {
    float* x = m.x + size_t(s.output_rows[i]) * d;
    if (!after) return norm_row(x, m.final_norm, d, c.eps, m.h, w.output_tiles, i);
    std::vector<float> copy(x, x + d);  // a token may be asked for twice: x stays as it is
    add_normed(copy.data(), m.added + size_t(s.output_rows[i]) * d, after, d, c.eps);
    norm_row(copy.data(), m.final_norm, d, c.eps, m.h, w.output_tiles, i);
  });
  if (s.num_outputs) {
    const Cut columns(w.output_tiles, m.head().num_pairs(), 2 * n);
    phase(P_HEAD, columns.units(), [&](int u) {
      columns.each(u, w.output_tiles, [&](int pair, int first, int h) { head_tile(w, pair, first, h); });
    });
  }
}

// ---- planning attention

void make_sets(const RametStep& s, StepPlan& plan) {
  std::vector<bool> taken(s.num_rows, false);
  auto splits = [&](int r) {
    const int n = s.query_offsets[r + 1] - s.query_offsets[r];
    return n > 0 && n <= DECODE_TOKENS;
  };
  for (int g = 0; g < s.num_groups; g++) {
    RowSet set;
    set.shared = s.group_shared[g];
    for (int i = s.group_offsets[g]; i < s.group_offsets[g + 1]; i++) {
      const int r = s.group_rows[i];
      if (taken[r] || !splits(r)) continue;
      const int n = s.query_offsets[r + 1] - s.query_offsets[r];
      if (s.context_lengths[r] - n < set.shared) continue;  // a shared key can't be one that the row computes now
      taken[r] = true;
      set.rows.push_back(r);
    }
    if (!set.rows.empty()) plan.sets.push_back(std::move(set));
  }
  plan.alone.assign(s.num_rows, -1);
  for (int r = 0; r < s.num_rows; r++)
    if (splits(r)) plan.alone[r] = int(plan.sets.size()), plan.sets.push_back(RowSet{{r}, 0});
}

// The first key that any new token of row r sees through the window.
int first_visible(const RametStep& s, int r, int window) {
  if (!window) return 0;
  const int n = s.query_offsets[r + 1] - s.query_offsets[r];
  int64_t position = s.context_lengths[r] - n;
  if (s.trees && s.trees[r])  // in a tree, distance is counted in positions
    for (int t = s.query_offsets[r]; t < s.query_offsets[r + 1]; t++) position = std::min(position, s.positions[t]);
  return int(std::max<int64_t>(0, position - window + 1));
}

void plan_attention(const Model& m, const RametStep& s, const StepPlan& step, AttendPlan& plan) {
  const int G = m.c.num_kv_heads, share = m.c.num_heads / G;
  plan.first_chunk.assign(s.num_rows, 0), plan.num_chunks.assign(s.num_rows, 0);
  plan.partial_base.assign(s.num_tokens, 0), plan.num_partials = 0;
  // all heads of a token lie together: read by one thread where there are units enough, else head by head
  int num_chunks = 0;
  for (int r = 0; r < s.num_rows; r++)
    if (step.alone[r] >= 0) num_chunks += (s.context_lengths[r] - first_visible(s, r, plan.window) + CHUNK - 1) / CHUNK;
  const int heads = num_chunks >= 4 * m.c.num_threads ? G : 1;
  auto chunks = [&](int set, int from, int to) {
    for (int chunk = from; chunk < to; chunk++)
      for (int g = 0; g < G; g += heads) plan.units.push_back({set, chunk, g, heads});
  };
  // long rows first, their last blocks (most keys) first: what is left at the end is small
  for (int r = 0; r < s.num_rows; r++) {
    const int n = s.query_offsets[r + 1] - s.query_offsets[r];
    if (n <= DECODE_TOKENS) continue;
    // units enough for all threads, as large as that allows
    const int queries = std::clamp(n * share / (4 * m.c.num_threads), LEAST_BLOCK_QUERIES, BLOCK_QUERIES), block = std::max(1, queries / share);
    for (int first = (n - 1) / block * block; first >= 0; first -= block)
      for (int g = 0; g < G; g++) plan.units.push_back({-1, 0, g, 1, r, first, std::min(n, first + block)});
  }
  std::vector<int> shared_chunks(s.num_rows, 0);
  for (size_t i = 0; i < step.sets.size(); i++) {
    const RowSet& set = step.sets[i];
    if (set.shared == 0) continue;
    int from = INT32_MAX;
    const int to = (set.shared + CHUNK - 1) / CHUNK;
    for (int r : set.rows) from = std::min(from, first_visible(s, r, plan.window) / CHUNK), shared_chunks[r] = to;
    chunks(int(i), from, to);
  }
  for (int r = 0; r < s.num_rows; r++) {
    if (step.alone[r] < 0) continue;
    const int first = first_visible(s, r, plan.window) / CHUNK, last = (s.context_lengths[r] + CHUNK - 1) / CHUNK;
    plan.first_chunk[r] = first, plan.num_chunks[r] = last - first;
    for (int t = s.query_offsets[r]; t < s.query_offsets[r + 1]; t++)
      plan.partial_base[t] = plan.num_partials, plan.num_partials += plan.num_chunks[r];
    chunks(step.alone[r], std::max(first, shared_chunks[r]), last);
  }
}

// ---- checks: nothing that a caller hands over makes a kernel read or write outside its memory

int check_step(const Model& m, const RametStep& s) {
  const RametConfig& c = m.c;
  if (s.num_rows < 0 || s.num_tokens < 0 || s.num_outputs < 0 || s.page_size < 1) return fail(-1, "negative sizes");
  if (s.query_offsets[0] != 0 || s.query_offsets[s.num_rows] != s.num_tokens) return fail(-2, "query_offsets do not cover the tokens");
  for (int t = 0; t < s.num_tokens; t++) {
    if (s.tokens[t] < 0 || s.tokens[t] >= c.vocabulary) return fail(-3, "token " + std::to_string(s.tokens[t]) + " outside the vocabulary");
    if (s.positions[t] < 0) return fail(-4, "a negative position");
    for (const RametLayer& l : m.layers)
      if (s.positions[t] >= l.num_positions) return fail(-4, "position " + std::to_string(s.positions[t]) + " past the context length");
    if (s.slots[t] < 0 || s.slots[t] >= int64_t(s.num_pages) * s.page_size) return fail(-5, "slot outside the pool");
  }
  for (int r = 0; r < s.num_rows; r++) {
    const int n = s.query_offsets[r + 1] - s.query_offsets[r], length = s.context_lengths[r];
    if (n < 0 || (n > 0 && length < n)) return fail(-6, "row " + std::to_string(r) + " has more new tokens than keys");
    if (n == 0) continue;
    if (int64_t(length) > int64_t(s.table_width) * s.page_size) return fail(-7, "row " + std::to_string(r) + " is longer than its page table");
    for (int p = 0; p * s.page_size < length; p++) {
      const int page = s.page_tables[size_t(r) * s.table_width + p];
      if (page < 0 || page >= s.num_pages) return fail(-8, "page " + std::to_string(page) + " outside the pool");
    }
  }
  for (int i = 0; i < s.num_outputs; i++)
    if (s.output_rows[i] < 0 || s.output_rows[i] >= s.num_tokens) return fail(-9, "output row outside the step");
  for (int g = 0; g < s.num_groups; g++)
    for (int i = s.group_offsets[g]; i < s.group_offsets[g + 1]; i++)
      if (s.group_rows[i] < 0 || s.group_rows[i] >= s.num_rows) return fail(-10, "group row outside the step");
  return 0;
}

void make_threads(Model& m) {
  const int n = m.c.num_threads, D = m.c.head_dim, share = m.c.num_heads / m.c.num_kv_heads;
  const size_t queries = std::max(BLOCK_QUERIES, share * std::max(1, BLOCK_QUERIES / share));
  m.threads.clear();
  for (int i = 0; i < n; i++) {
    auto t = std::make_unique<Thread>();
    const size_t packed = size_t(CHUNK) * D * 4, scores = size_t(QUERY_TILE) * CHUNK * 4;
    const size_t bytes = 2 * packed + 2 * scores + size_t(TILE_ROWS) * D * 4 + queries * D * 4 + 4096;
    uint8_t* p = (uint8_t*)t->memory.at_least(bytes);
    auto take = [&](size_t size) {
      uint8_t* at = p;
      p += (size + 63) / 64 * 64;
      return at;
    };
    t->f = {(u8x64*)take(packed), (u8x64*)take(packed), (float*)take(scores), (float*)take(scores), {}, {}};
    t->b = {t->f.keys, t->f.values, t->f.scores, (uint16_t*)t->f.weights, {}, {}};
    t->tile = (float*)take(size_t(TILE_ROWS) * D * 4);
    t->block_o = (float*)take(queries * D * 4);
    m.threads.push_back(std::move(t));
  }
  m.team = std::make_unique<Team>(n);
}

void make_room(Model& m, const RametStep& s) {
  const RametConfig& c = m.c;
  const int T = s.num_tokens, O = s.num_outputs;
  m.x = (float*)m.x_memory.at_least(sizeof(float) * size_t(T) * c.hidden);
  if (m.layers[0].after_attention) m.added = (float*)m.added_memory.at_least(sizeof(float) * size_t(T) * c.hidden);
  m.queries = m.query_memory.at_least(sizeof(float) * size_t(T) * c.num_heads * c.head_dim);
  bool a[3] = {}, o[3] = {}, f[3] = {}, h[3] = {};
  for (int layer = 0; layer < c.num_layers; layer++) {
    for (int slot : {Q, KEY, VALUE, GATE, UP}) want(m.matrix(layer, slot).format, a);
    want(m.matrix(layer, OUT).format, o), want(m.matrix(layer, DOWN).format, f);
  }
  want(m.head().format, h);
  m.a = lay_out(m.a_memory, T, c.hidden, a);
  m.o = lay_out(m.o_memory, T, c.num_heads * c.head_dim, o);
  m.f = lay_out(m.f_memory, T, c.feed_forward, f);
  m.h = lay_out(m.h_memory, std::max(O, 1), c.hidden, h);
}

std::shared_ptr<const StepPlan> make_plan(Model& m, const RametStep& s) {
  auto step = std::make_shared<StepPlan>();
  make_sets(s, *step);
  const Tiles tiles(s.num_tokens);
  step->is_asked.assign(tiles.count, false);
  for (int i = 0; i < s.num_outputs; i++) step->is_asked[tiles.tile_of(int(s.output_rows[i]))] = true;
  size_t num_partials = 1;
  for (int window : m.windows) {
    AttendPlan& plan = step->plans.emplace_back();
    plan.window = window;
    plan_attention(m, s, *step, plan);
    num_partials = std::max(num_partials, plan.num_partials);
  }
  m.partials = (float*)m.partial_memory.at_least(num_partials * m.c.num_heads * (m.c.head_dim + LANES) * sizeof(float));
  const size_t n = size_t(s.num_rows) * m.c.num_kv_heads;
  if (n > m.num_done_chunks) m.done_chunks.reset(new std::atomic<int>[n]), m.num_done_chunks = n;
  for (size_t i = 0; i < n; i++) m.done_chunks[i] = 0;
  return step;
}

}  // namespace

extern "C" {

const char* ramet_error() { return error_text.c_str(); }

// Features this build was compiled for: 1 AVX2, 2 AVX-512, 4 VNNI, 8 BF16.
int ramet_features() {
  int bits = 0;
#if defined(__AVX2__)
  bits |= 1;
#endif
#if defined(__AVX512F__)
  bits |= 2;
#endif
#if defined(__AVX512VNNI__)
  bits |= 4;
#endif
#if defined(__AVX512BF16__)
  bits |= 8;
#endif
  return bits;
}

void* ramet_create(const RametConfig* config) {
  auto m = std::make_unique<Model>();
  m->c = *config;
  m->layers.resize(config->num_layers);
  m->matrices.resize(size_t(config->num_layers) * NUM_SLOTS + 1);
  make_threads(*m);
  return m.release();
}

void ramet_destroy(void* handle) { delete (Model*)handle; }

// `embedding` and the norms stay the caller's and must outlive the model.
int ramet_set_shared(void* handle, const void* embedding, const float* final_norm) {
  Model& m = *(Model*)handle;
  m.embedding = (const uint8_t*)embedding, m.final_norm = final_norm;
  return 0;
}

int ramet_set_layer(void* handle, int layer, const RametLayer* small) {
  Model& m = *(Model*)handle;
  if (layer < 0 || layer >= m.c.num_layers) return fail(-1, "no such layer");
  m.layers[layer] = *small;
  auto plan = std::find(m.windows.begin(), m.windows.end(), small->window) - m.windows.begin();
  if (plan == ptrdiff_t(m.windows.size())) m.windows.push_back(small->window);
  m.plan_of_layer.resize(m.c.num_layers, 0);
  m.plan_of_layer[layer] = int(plan);
  return 0;
}

// Pack one matrix [N, K]. slot: 0-6 of a layer (q k v output gate up down); layer -1: the head. `rows` is read now and not
// kept; `bias` [N] float is kept.
int ramet_set_matrix(void* handle, int layer, int slot, int format, int source, int N, int K, const void* rows, const float* bias) {
  Model& m = *(Model*)handle;
  if (layer < -1 || layer >= m.c.num_layers || slot < 0 || slot >= NUM_SLOTS) return fail(-1, "no such matrix");
  if (K % 32 || N < 1) return fail(-2, "the inner size must be a multiple of 32");
  if (!can_pack(source, format)) return fail(-3, "these blocks cannot become this format");
  Matrix& matrix = layer < 0 ? m.head() : m.matrix(layer, slot);
  matrix.format = format, matrix.N = N, matrix.K = K, matrix.bias = bias;
  matrix.num_panels = (N + PAIR - 1) / PAIR * 2;
  matrix.panel_bytes = panel_bytes_of(format, K);
  const size_t bytes = matrix.panel_bytes * matrix.num_panels;
  matrix.data = m.weights.take(bytes);
  m.statistics.weight_bytes += int64_t(bytes);
  Job& job = m.team->vacant();
  job.prepare(1);
  const int per_unit = 4, units = (matrix.num_panels + per_unit - 1) / per_unit;
  job.body = [&matrix, rows, source, units](Team& team, Job& job, int thread) {
    team.phase(job.phases[0], units, thread, [&](int u) {
      for (int p = u * per_unit; p < std::min(matrix.num_panels, (u + 1) * per_unit); p++)
        pack_panel(matrix, p, (const uint8_t*)rows, source);
    });
  };
  m.team->run(job);
  return 0;
}

int ramet_forward(void* handle, const RametStep* step) {
  Model& m = *(Model*)handle;
  const RametStep& s = *step;
  std::lock_guard<std::mutex> lock(m.busy);
  if (int code = check_step(m, s)) return code;
  if (s.num_tokens == 0) return 0;
  std::shared_ptr<const StepPlan> plan;
  try {
    if (m.team->was_forked()) (void)m.team.release(), make_threads(m);  // its threads exist in the parent only
    make_room(m, s);
    plan = make_plan(m, s);
  } catch (const std::bad_alloc&) {
    return fail(-20, "out of memory for a step of " + std::to_string(s.num_tokens) + " tokens");
  }
  Job& job = m.team->vacant();
  job.prepare(size_t(m.c.num_layers) * 7 + 2);
  const KVShape kv{s.kv_type, s.page_size, m.c.num_kv_heads, m.c.head_dim, m.c.stored_head_dim};
  const Walk w{m, s, plan, Tiles(s.num_tokens), Tiles(s.num_outputs), kv, m.c.num_threads};
  job.body = [w](Team& team, Job& job, int thread) { walk(w, team, job, thread); };
  m.team->run(job);
  m.statistics.steps++, m.statistics.sleeps = m.team->num_sleeps();
  m.statistics.active_threads = m.team->active();
  for (auto& thread : m.threads) m.statistics.kv_bytes_read += std::exchange(thread->kv_bytes_read, 0);
  return 0;
}

void ramet_statistics(void* handle, RametStatistics* out) { *out = ((Model*)handle)->statistics; }
// Bytes per second of reading, and int8 multiply-adds per second: see ceilings.h. Not during a step.
void ramet_ceilings(void* handle, double* read, double* int8) {
  Model& m = *(Model*)handle;
  std::lock_guard<std::mutex> lock(m.busy);
  Buffer big;
  const size_t size = size_t(256) << 20;
  uint8_t* data = (uint8_t*)big.at_least(size);
  std::memset(data, 1, size);
  *read = measure_read(*m.team, data, size), *int8 = measure_int8(*m.team);
}
void ramet_limit_threads(void* handle, int num) { ((Model*)handle)->team->limit(num); }

}  // extern "C"
