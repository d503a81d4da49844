// SPDX-License-Identifier: Apache-2.0
// What a Handle owns: the queue, the workers, the limits, the counters.
// Any thread.
// Shared by the Handle, its workers' threads and unfinished transfers; the last to let go frees it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <headrace/handle.h>

#include "base/latency_histogram.h"
#include "engine/engine.h"
#include "memory/buffer_storage.h"
#include "os/process_id.h"
#include "transfer/request_queue.h"
#include "transfer/transfer_state.h"

namespace headrace::transfer {

class Worker;

struct EngineCandidate {
  EngineKind kind = EngineKind::automatic;
  engine::EngineFactory factory;
};

struct Finished {
  plan::Direction direction = plan::Direction::read;
  bool failed = false;
  int errno_value = 0;
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  const Route& route;
  std::chrono::nanoseconds latency{};
};

class HandleState : public std::enable_shared_from_this<HandleState>, public memory::BufferWatcher {
 public:
  using Clock = std::chrono::steady_clock;

  // The first candidate whose engine starts is taken. Tests pass a simulated one.
  [[nodiscard]] static Result<std::shared_ptr<HandleState>> create(const HandleOptions& options,
                                                                   std::span<const EngineCandidate> candidates);

  explicit HandleState(const HandleOptions& options, BlockSizes sizes);
  ~HandleState() override;

  [[nodiscard]] Result<std::vector<Transfer>> read_many(std::span<const ReadItem> items);
  [[nodiscard]] Result<std::vector<Transfer>> write_many(std::span<const WriteItem> items);
  // Takes over `file`, and commits it once `request` is written.
  [[nodiscard]] Result<Transfer> replace(std::unique_ptr<AtomicFile> file, const WriteRequest& request);
  [[nodiscard]] Status close(std::optional<Clock::time_point> deadline);
  // Lets the worker threads go on by themselves.
  void detach();
  void abort_reads();
  [[nodiscard]] bool usable() const noexcept { return !closing_.load(std::memory_order_acquire) && in_own_process(); }
  [[nodiscard]] bool in_own_process() const noexcept { return process_ == os::process_id(); }

  [[nodiscard]] const HandleFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] const HandleOptions& options() const noexcept { return options_; }
  [[nodiscard]] HandleStats stats() const;
  // Of finished reads and of finished writes, since the handle was made: two of them tell what happened in between.
  [[nodiscard]] std::array<base::LatencyHistogram::Counts, 2> latencies() const noexcept;

  // --- for transfers and workers ---
  [[nodiscard]] RequestQueue& queue() noexcept { return queue_; }
  void enqueue(std::shared_ptr<Job> job);
  // Wakes one worker that sleeps and has room.
  void wake_one() noexcept;
  static void sync(const std::shared_ptr<SyncGroup>& group);
  void count_finished(const Finished& finished) noexcept;
  void remember_failed_write(const std::shared_ptr<TransferState>& state);
  // Around the moment when a request becomes done: its place is free before anybody can see it done, so that whoever
  // waited for it may submit another; and close() ends after it.
  void free_place() noexcept;
  void request_done() noexcept;
  enum class Notice : uint32_t { direct_refused = 1, registration_refused = 2 };
  // Once per handle and kind.
  void notice(Notice kind, const std::string& text);
  void buffer_gone(uint64_t buffer_id) noexcept override;
  // How often HandleOptions::interrupted is asked. For tests, before the first request.
  void set_interrupt_every(Clock::duration every) noexcept { interrupt_every_ = every; }

 private:
  struct Prepared {
    TransferState::Setup setup;
    std::vector<Part> parts;  // without owner
    int priority = 0;
    bool direct_wanted = true;
    OpenFile* file = nullptr;  // once `setup` has gone to the state, which holds it
    bool empty = false;
    bool truncate_first = false;
  };

  [[nodiscard]] Error closed_error() const;
  // What both directions check of a request first.
  [[nodiscard]] static Result<Prepared> begin_request(plan::Direction direction, const File& file,
                                                      uint64_t offset_bytes, int priority);
  [[nodiscard]] Result<Prepared> prepare_read(const ReadItem& item);
  [[nodiscard]] Result<Prepared> prepare_write(const WriteItem& item);
  [[nodiscard]] Status add_region(Prepared& prepared, Region region, CopyMode copy) const;
  [[nodiscard]] Status choose_path(Prepared& prepared, CacheMode cache);
  // Counts `wanted` requests, as many as the limit has room for, waiting for the first where the options say so.
  // From `ask_at` on it asks HandleOptions::interrupted, and moves that on.
  [[nodiscard]] Result<uint32_t> reserve(size_t wanted, Clock::time_point& ask_at);
  void give_places_back(uint32_t count);
  // All are prepared before any is started.
  template <typename Item>
  [[nodiscard]] Result<std::vector<Transfer>> submit_all(std::span<const Item> items,
                                                         Result<Prepared> (HandleState::*prepare)(const Item&));
  // Those that a request wants cut, each once.
  [[nodiscard]] static Status truncate_files(std::span<Prepared> prepared);
  [[nodiscard]] Result<std::vector<Transfer>> submit(std::vector<Prepared> prepared);
  void start(std::span<Prepared> prepared, std::vector<Transfer>& transfers);

  const pid_t process_ = os::process_id();
  const HandleOptions options_;
  Clock::duration interrupt_every_ = std::chrono::milliseconds(100);
  HandleFacts facts_;
  RequestQueue queue_;
  std::vector<std::unique_ptr<Worker>> workers_;  // fixed once create() is over; stopped and joined by close()
  std::atomic<bool> closing_ = false;
  std::atomic<uint32_t> noticed_ = 0;
  std::atomic<uint32_t> finishing_ = 0;  // requests between free_place() and request_done()

  std::mutex close_mutex_;  // one close() at a time stops and joins
  mutable std::mutex mutex_;
  std::condition_variable changed_;                            // unfinished_ went down
  uint64_t unfinished_ = 0;                                    // guarded by mutex_
  uint32_t waiters_ = 0;                                       // threads in changed_; guarded by mutex_
  std::vector<std::shared_ptr<TransferState>> failed_writes_;  // guarded by mutex_
  std::map<int, uint64_t> errors_by_errno_;                    // guarded by mutex_

  struct Counters {
    std::atomic<uint64_t> requests = 0, failed = 0, bytes = 0, blocks = 0, direct = 0, buffered = 0, staged = 0,
                          registered = 0;
    base::LatencyHistogram latency;
  };
  std::array<Counters, 2> counters_;  // by plan::Direction
};

}  // namespace headrace::transfer
