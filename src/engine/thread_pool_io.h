// SPDX-License-Identifier: Apache-2.0
// Helper threads that carry out blocks with pread, pwrite and fdatasync, for engines.
// submit(), reap() and the rest belong to the owner thread; the helpers are named, deaf to signals and started when needed.
// Owns its threads and queues; the event and the memory of the blocks are borrowed until the pool is gone.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>

#include "engine/engine.h"
#include "engine/fixed_ring.h"
#include "engine/wake_event.h"

namespace headrace::engine {

class IoThreads {
 public:
  static constexpr uint32_t kThreadsMax = 16;

  // At most `depth` blocks at a time on at most min(depth, kThreadsMax) threads. `event` is signalled when the first of
  // some completions is ready to be reaped.
  IoThreads(uint32_t depth, WakeEvent& event);

  // Drains: returns when the last block is done.
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  // Starts one thread now, so that a failure is seen here and not at the first block.
  [[nodiscard]] Status start_first();

  // Accepts a prefix, never waits. Should no thread at all be to be had, the blocks complete with EAGAIN.
  [[nodiscard]] size_t submit(std::span<const Block> blocks);

  // Never waits.
  [[nodiscard]] size_t reap(std::span<Completion> completions);

  // Accepted and not yet reaped.
  [[nodiscard]] uint32_t in_flight() const noexcept { return in_flight_; }
  [[nodiscard]] uint32_t threads_max() const noexcept { return threads_max_; }

 private:
  void work();
  void start_threads(size_t wanted);
  void fail_queued();

  const uint32_t depth_;
  const uint32_t threads_max_;
  WakeEvent& event_;
  std::array<std::thread, kThreadsMax> threads_;  // owner
  uint32_t threads_started_ = 0;                  // owner
  uint32_t in_flight_ = 0;                        // owner

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_ready_;
  FixedRing<Block> queued_;
  FixedRing<Completion> done_;
  uint32_t idle_ = 0;  // threads that wait for work, or were told of it and have not taken it yet
  bool stopping_ = false;
};

}  // namespace headrace::engine
