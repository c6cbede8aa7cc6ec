// A team of threads that walks one list of phases together, and never waits for a thread that holds no work.
//
// A phase is a number of independent units. Each thread takes units from a shared counter until none is left; the phase is
// over when every unit is done, not when every thread has come by. So a thread that the system has put aside, because another
// process uses its core, delays nobody as long as it holds no unit, and a slow thread simply takes fewer.
//
// Waiting spins for some tens of microseconds and then sleeps in the kernel (std::atomic::wait, a futex): a spinning thread is
// what starves the thread that it waits for, when both have to share a core.
//
// A job's counters may be looked at by a late thread after the job has ended. So jobs live in slots that are reused only when
// nobody is inside (`visitors`).
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace ramet {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct alignas(64) Phase {
  std::atomic<int32_t> next{0};
  std::atomic<int32_t> done{0};
};

// How many threads to use, learnt from how long threads wait for each other.
//
// With a core busy elsewhere, a step on all threads goes at the pace of the one that shares its core. A thread less is then
// faster, and steadier. So: three steps in a row in which some thread waited for more than a third of the time take one
// thread off; after a while all are tried again, and each try that fails makes the next while twice as long.
class Adaptive {
 public:
  explicit Adaptive(int full) : full_(full), active_(full) {}
  int active() const { return active_; }
  void observe(double waited_share, double now_s) {
    if (active_ < full_ && now_s >= retry_at_s_) {
      active_ = full_, bad_ = 1;  // a try: two bad steps end it
      return;
    }
    if (active_ == 1 || waited_share < 0.33) {
      if (active_ == full_ && bad_ == 0) while_s_ = SHORTEST_S;
      bad_ = 0;
    } else if (++bad_ >= 3) {
      active_--, bad_ = 0, retry_at_s_ = now_s + while_s_;
      while_s_ = while_s_ < LONGEST_S ? 2 * while_s_ : while_s_;
    }
  }

 private:
  static constexpr double SHORTEST_S = 0.02, LONGEST_S = 0.5;
  const int full_;
  int active_, bad_ = 0;
  double retry_at_s_ = 0, while_s_ = SHORTEST_S;
};

class Team;

// One walk through the phases; what a unit does is up to the body.
struct Job {
  std::vector<Phase> phases;
  std::atomic<int> visitors{0};
  std::function<void(Team&, Job&, int thread)> body;
  int64_t plan[8] = {};  // sizes that a late thread may still read

  void prepare(size_t num_phases) {
    if (phases.size() < num_phases) phases = std::vector<Phase>(num_phases);
    for (size_t i = 0; i < num_phases; i++) phases[i].next = 0, phases[i].done = 0;
  }
};

class Team {
 public:
  // spin_turns: turns of the waiting loop before it sleeps; a turn is a pause, about 23 ns on Zen 5.
  explicit Team(int num_threads, int spin_turns = 2000)
      : num_threads_(num_threads), spin_turns_(spin_turns), jobs_(num_threads + 2), owner_(getpid()), adaptive_(num_threads),
        waited_(num_threads) {
    for (int i = 1; i < num_threads; i++) threads_.emplace_back([this, i] { work(i); });
  }
  ~Team() {
    if (owner_ != getpid()) {  // a forked child: the threads stayed behind in the parent
      for (auto& thread : threads_) thread.detach();
      return;
    }
    stop_ = true;
    wake();
    for (auto& thread : threads_) thread.join();
  }
  int size() const { return num_threads_; }
  bool was_forked() const { return owner_ != getpid(); }
  int64_t num_sleeps() const { return num_sleeps_; }

  // Use at most so many threads for the next jobs.
  void limit(int most) { most_ = most < 1 ? 1 : (most > num_threads_ ? num_threads_ : most); }
  int active() const { return active_; }

  // A slot that no late thread looks at.
  Job& vacant() {
    for (;;)
      for (auto& job : jobs_)
        if (job.visitors.load() == 0) return job;
  }
  // Run the body on all active threads, the caller's included; returns when the caller has walked through.
  void run(Job& job) {
    const auto began = std::chrono::steady_clock::now();
    active_ = std::min(most_, adaptive_.active());
    for (auto& waited : waited_) waited.ns = 0;
    if (active_ > 1) {
      current_.store(&job);
      wake();
    }
    job.body(*this, job, 0);
    current_.store(nullptr);
    const auto ended = std::chrono::steady_clock::now();
    const double ns = std::chrono::duration<double, std::nano>(ended - began).count();
    int64_t most = 0;
    for (auto& waited : waited_) most = std::max<int64_t>(most, waited.ns);
    if (most_ == num_threads_ && ns > 300e3) adaptive_.observe(most / ns, std::chrono::duration<double>(ended.time_since_epoch()).count());
  }
  // One phase, on one thread: take units until none is left, then wait until all are done.
  template <class F>
  void phase(Phase& p, int num_units, int thread, F&& unit) {
    int mine = 0;
    for (int u; (u = p.next.fetch_add(1, std::memory_order_relaxed)) < num_units; mine++) unit(u);
    if (mine) {
      const int done = p.done.fetch_add(mine, std::memory_order_acq_rel) + mine;
      if (done == num_units) {
        p.done.notify_all();
        return;
      }
    }
    if (p.done.load(std::memory_order_acquire) < num_units) await(p, num_units, thread);
  }

 private:
  void await(Phase& p, int num_units, int thread) {
    const auto began = std::chrono::steady_clock::now();
    bool sleeps = true;
    for (int turn = 0; turn < spin_turns_ && sleeps; turn++) {
      relax();
      sleeps = p.done.load(std::memory_order_acquire) < num_units;
    }
    if (sleeps) {
      num_sleeps_.fetch_add(1, std::memory_order_relaxed);
      for (int seen; (seen = p.done.load(std::memory_order_acquire)) < num_units;) p.done.wait(seen);
    }
    waited_[thread].ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  }
  void wake() {
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }
  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      int turn = 0;
      while (epoch_.load(std::memory_order_acquire) == seen && turn++ < spin_turns_) relax();
      while (epoch_.load(std::memory_order_acquire) == seen) epoch_.wait(seen);
      seen = epoch_.load();
      if (stop_) return;
      if (thread >= active_) continue;
      Job* job = current_.load();
      if (!job) continue;
      job->visitors.fetch_add(1);
      if (current_.load() == job) job->body(*this, *job, thread);
      job->visitors.fetch_sub(1);
    }
  }

  const int num_threads_, spin_turns_;
  struct alignas(64) Waited {
    std::atomic<int64_t> ns{0};
  };
  std::atomic<int> active_{1};
  int most_ = num_threads_;
  std::vector<Job> jobs_;
  const pid_t owner_;
  Adaptive adaptive_;
  std::vector<Waited> waited_;  // per thread, in the job now running
  std::atomic<Job*> current_{nullptr};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> num_sleeps_{0};
  std::vector<std::thread> threads_;
};

}  // namespace ramet
