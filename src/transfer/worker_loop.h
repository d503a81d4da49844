// SPDX-License-Identifier: Apache-2.0
// The loop of a worker's thread: keeps the engine fed, checks every completion, finishes what the kernel cut short.
// The worker's thread only.
// Owns the staging memory and the table of blocks in flight; borrows the engine, the handle and the worker for its life.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <headrace/error.h>

#include "engine/engine.h"
#include "os/mapping.h"
#include "transfer/memory_slots.h"
#include "transfer/request_queue.h"
#include "transfer/worker.h"

namespace headrace::transfer {

class WorkerLoop {
 public:
  [[nodiscard]] static Result<std::unique_ptr<WorkerLoop>> create(Worker& worker, HandleState& handle,
                                                                  engine::Engine& engine);

  // Until the worker is told to stop and all work is done.
  void run();

 private:
  using Clock = engine::Clock;
  static constexpr size_t kBatchMin = 2;                     // the kernel holds back what comes in larger batches
  static constexpr uint32_t kTakeMax = 32;                   // blocks taken from the queue at once
  static constexpr uint64_t kTakeBytes = uint64_t{2} << 20;  // and their bytes, so that other workers find some too
  static constexpr uint32_t kImmediateRetriesMax = 1000;     // EINTR, and writes of nothing
  static constexpr uint32_t kDelayedRetriesMax = 1000;       // EAGAIN, once per millisecond
  static constexpr auto kRetryDelay = std::chrono::milliseconds(1);
  static constexpr auto kFullPatience = std::chrono::seconds(2);  // of an engine that is full with nothing in flight
  static constexpr uint32_t kNoSlot = UINT32_MAX;

  struct InFlight {
    std::shared_ptr<Job> job;
    plan::PlannedBlock plan;
    uint32_t part = 0;
    uint32_t staging_slot = kNoSlot;
    int32_t memory_slot = engine::kNotRegistered;
    engine::Path path = engine::Path::buffered;
    std::byte* data = nullptr;  // of plan.io_begin
    uint64_t position = 0;      // file offset up to which the kernel has answered
    uint32_t immediate_retries = 0;
    uint32_t delayed_retries = 0;
  };

  WorkerLoop(Worker& worker, HandleState& handle, engine::Engine& engine);

  void read_mail();
  void fill();
  // How many blocks are resolved, and how many sent, before the other half has its turn. The less the device holds, the
  // sooner it gets the next ones: it must not idle while a long batch is prepared.
  [[nodiscard]] size_t batch() const;
  // False when the block cannot be sent under the options; finish() it then.
  [[nodiscard]] bool prepare(uint32_t index, QueuedBlock&& block);
  void choose_memory(InFlight& entry);
  void gather(const InFlight& entry);
  void scatter(const InFlight& entry, uint64_t good_end);
  void submit_ready();
  void sleep_or_reap();
  void on_completion(const engine::Completion& completion);
  void on_error(uint32_t index, int errno_value);
  // Of any kind of block, with what the kernel has moved of it; nothing is tried again.
  void fail(uint32_t index, int errno_value);
  void fail_ready();
  // True when the next rung of a ladder was taken and the block is on its way again.
  [[nodiscard]] bool fall_back(uint32_t index, int errno_value);
  void send_again(uint32_t index);
  // The block is over: the payload up to `good_end` is moved; the rest failed with `code`.
  void finish(uint32_t index, uint64_t good_end, ErrorCode code, int errno_value);
  void finish_sync(InFlight& entry, int errno_value);
  void send_parts_alone(const Job& job, uint32_t first_part, uint64_t begin, uint64_t end, int errno_value,
                        bool summed);
  [[nodiscard]] engine::Block block_of(uint32_t index) const;
  [[nodiscard]] bool has_room() const;

  Worker& worker_;
  HandleState& handle_;
  engine::Engine& engine_;
  const WorkerOptions options_;
  const uint32_t depth_;
  MemorySlots memory_;
  os::Mapping staging_;
  std::vector<uint32_t> free_staging_;  // a stack: the slot used last is warm, and registered already
  std::vector<InFlight> table_;
  std::vector<uint32_t> free_entries_;
  std::vector<uint32_t> ready_;    // to be submitted, in order
  std::vector<uint32_t> delayed_;  // after EAGAIN
  Clock::time_point delayed_until_{};
  std::optional<Clock::time_point> full_since_;
  std::vector<engine::Block> blocks_;  // scratch for submit
  std::vector<engine::Completion> completions_;
  uint64_t in_flight_bytes_ = 0;
  uint32_t in_engine_ = 0;
};

}  // namespace headrace::transfer
