// A team of threads that walks one list of phases together, and never waits for a thread that holds no work.
//
// A phase is a number of independent units. Each thread takes units from a shared counter until none is left; the phase is
// over when every unit is done, not when every thread has come by. So a thread that the system has put aside, because another
// process uses its core, delays nobody as long as it holds no unit, and a slow thread simply takes fewer.
//
// Waiting spins for some ten microseconds and then sleeps in the kernel (std::atomic::wait, a futex): a spinning thread is
// what starves the thread that it waits for, when both have to share a core.
//
// A job's counters may be looked at by a late thread after the job has ended. So jobs live in slots that are reused only when
// nobody is inside (`visitors`).
#pragma once

#include <unistd.h>

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
  // spin_turns: turns of the waiting loop before it sleeps; a turn is about 15 ns.
  explicit Team(int num_threads, int spin_turns = 2000)
      : num_threads_(num_threads), spin_turns_(spin_turns), jobs_(num_threads + 2), owner_(getpid()) {
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
  void limit(int active) { active_ = active < 1 ? 1 : (active > num_threads_ ? num_threads_ : active); }

  // A slot that no late thread looks at.
  Job& vacant() {
    for (;;)
      for (auto& job : jobs_)
        if (job.visitors.load() == 0) return job;
  }
  // Run the body on all active threads, the caller's included; returns when the caller has walked through.
  void run(Job& job) {
    if (active_ > 1 && num_threads_ > 1) {
      current_.store(&job);
      wake();
    }
    job.body(*this, job, 0);
    current_.store(nullptr);
  }
  // One phase, on one thread: take units until none is left, then wait until all are done.
  template <class F>
  void phase(Phase& p, int num_units, F&& unit) {
    int mine = 0;
    for (int u; (u = p.next.fetch_add(1, std::memory_order_relaxed)) < num_units; mine++) unit(u);
    if (mine) {
      const int done = p.done.fetch_add(mine, std::memory_order_acq_rel) + mine;
      if (done == num_units) {
        p.done.notify_all();
        return;
      }
    }
    await(p, num_units);
  }

 private:
  void await(Phase& p, int num_units) {
    for (int turn = 0; turn < spin_turns_; turn++) {
      if (p.done.load(std::memory_order_acquire) >= num_units) return;
      relax();
    }
    num_sleeps_.fetch_add(1, std::memory_order_relaxed);
    for (int seen; (seen = p.done.load(std::memory_order_acquire)) < num_units;) p.done.wait(seen);
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
  std::atomic<int> active_{num_threads_};
  std::vector<Job> jobs_;
  const pid_t owner_;
  std::atomic<Job*> current_{nullptr};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> num_sleeps_{0};
  std::vector<std::thread> threads_;
};

}  // namespace ramet
