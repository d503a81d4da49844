// SPDX-License-Identifier: Apache-2.0
// One I/O thread with its engine, its staging slots and its table of blocks in flight: take, stage, submit, reap, retry, resolve.
// start(), wake() and the counters are for any thread; everything else is the worker's own thread.
// The engine and the staging memory live and die on that thread. Nothing is allocated there once it runs, but for errors.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <headrace/handle.h>

#include "engine/engine.h"
#include "transfer/request_queue.h"

namespace headrace::transfer {

class HandleState;
class WorkerLoop;

struct WorkerOptions {
  uint32_t depth = 32;
  uint64_t staged_block_bytes = 1 << 20;
  uint64_t staging_bytes = 32 << 20;
  uint64_t in_flight_bytes_max = 128 << 20;  // at least one block goes whatever its size
  PageKind staging_pages = PageKind::transparent;
  Ladder registered = Ladder::automatic;
};

class Worker {
 public:
  explicit Worker(const WorkerOptions& options) noexcept : options_(options) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the thread and waits for its engine's verdict. The thread holds `handle` until it ends.
  [[nodiscard]] Result<engine::Caps> start(const std::shared_ptr<HandleState>& handle,
                                           const engine::EngineFactory& factory);
  // No more work will come: the thread ends when the queue is empty and nothing is in flight.
  void stop() noexcept;
  void join();
  void detach();

  // True when the worker slept with room for more, and was woken.
  [[nodiscard]] bool wake_if_waiting() noexcept;
  void buffer_gone(uint64_t buffer_id) noexcept;
  [[nodiscard]] uint64_t staging_bytes_in_use() const noexcept {
    return staging_bytes_in_use_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t registered_bytes() const noexcept { return registered_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class WorkerLoop;

  void wake_engine() noexcept;

  const WorkerOptions options_;
  std::thread thread_;
  std::atomic<bool> waiting_ = false;  // set before the worker sleeps with room, cleared by whoever wakes it
  std::atomic<bool> stopping_ = false;
  std::atomic<uint64_t> staging_bytes_in_use_ = 0;
  std::atomic<uint64_t> registered_bytes_ = 0;

  std::mutex mutex_;
  engine::Engine* engine_ = nullptr;    // while the loop runs; for wake(); guarded by mutex_
  std::vector<uint64_t> gone_buffers_;  // guarded by mutex_
  std::atomic<bool> mail_ = false;      // gone_buffers_ has something
};

}  // namespace headrace::transfer
