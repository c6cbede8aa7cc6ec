// What this machine can do at most, measured with this build's own instructions: the other half of every "share of the limit".
#pragma once

#include "gemm.h"
#include "pool.h"

namespace ramet {

// Bytes per second at which all threads together read `size` bytes at `data`, best of three passes.
inline double measure_read(Team& team, const uint8_t* data, size_t size) {
  constexpr size_t PIECE = 1 << 18;
  const int units = int(size / PIECE);
  double best = 0;
  for (int pass = 0; pass < 3; pass++) {
    Job& job = team.vacant();
    job.prepare(1);
    std::atomic<uint32_t> sink{0};
    job.body = [&, units](Team& team, Job& job, int thread) {
      team.phase(job.phases[0], units, thread, [&](int u) {
        i32x16 a = {}, b = {}, c = {}, d = {};
        const uint8_t* p = data + size_t(u) * PIECE;
        for (size_t i = 0; i < PIECE; i += 256) {
          a ^= load_as<i32x16>(p + i), b ^= load_as<i32x16>(p + i + 64);
          c ^= load_as<i32x16>(p + i + 128), d ^= load_as<i32x16>(p + i + 192);
        }
        sink += uint32_t((a ^ b ^ c ^ d)[0]);
      });
    };
    const auto began = std::chrono::steady_clock::now();
    team.run(job);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    best = std::max(best, double(units) * PIECE / s);
  }
  return best;
}

// int8 multiply-adds per second of all threads together, operands in registers.
inline double measure_int8(Team& team) {
  constexpr int TURNS = 20000, CHAINS = 12, UNITS = 64;
  double best = 0;
  for (int pass = 0; pass < 3; pass++) {
    Job& job = team.vacant();
    job.prepare(1);
    std::atomic<int32_t> sink{0};
    job.body = [&](Team& team, Job& job, int thread) {
      team.phase(job.phases[0], UNITS, thread, [&](int u) {
        const int8_t group[4] = {1, 1, 1, int8_t(u)};
        const Operand ones = spread32(group);
        i32x16 sums[CHAINS];
        for (int i = 0; i < CHAINS; i++) sums[i] = lane_index() * i + u;  // no two chains alike, or they would be merged
        u8x64 weights = {};
        weights += uint8_t(u & 15);
        for (int turn = 0; turn < TURNS; turn++) {
#pragma GCC unroll 12
          for (int i = 0; i < CHAINS; i++) sums[i] = dot4<4>(sums[i], weights, ones);
          // A new operand to the compiler: nothing is hoisted or merged. Where 64 bytes are no register, it lies in memory.
#if defined(__AVX512F__)
          asm volatile("" : "+v"(weights));
#else
          asm volatile("" : "+m"(weights));
#endif
        }
        int32_t total = 0;
        for (auto& sum : sums) total += sum[0];
        sink += total;
      });
    };
    const auto began = std::chrono::steady_clock::now();
    team.run(job);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    best = std::max(best, double(UNITS) * TURNS * CHAINS * 64 / s);
  }
  return best;
}

}  // namespace ramet
