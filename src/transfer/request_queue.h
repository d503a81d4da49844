// SPDX-License-Identifier: Apache-2.0
// The handle's one queue: jobs by priority, handed out block by block to whichever worker asks.
// Any thread; one lock, held for the arithmetic of a few blocks.
// Owns queued jobs through their `self`.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <headrace/request.h>

#include "plan/block_plan.h"
#include "transfer/job.h"

namespace headrace::transfer {

// A block handed out, not yet sent.
struct QueuedBlock {
  std::shared_ptr<Job> job;
  plan::PlannedBlock plan;
  uint32_t part = 0;  // index of the first part that it touches
  bool direct_refused = false;
};

struct BlockSizes {
  uint64_t block_bytes = 0;
  uint64_t staged_block_bytes = 0;
};

class RequestQueue {
 public:
  explicit RequestQueue(BlockSizes sizes) noexcept : sizes_(sizes) {}
  ~RequestQueue();

  void push(std::shared_ptr<Job> job);
  // Ahead of everything of its priority.
  void push_front(std::shared_ptr<Job> job);
  // Up to blocks.size() blocks, highest priority first; fewer when `bytes_max` is reached (but at least one).
  [[nodiscard]] size_t take(std::span<QueuedBlock> blocks, uint64_t bytes_max);
  [[nodiscard]] bool empty() const noexcept { return size_.load(std::memory_order_seq_cst) == 0; }

  // Nothing more of `owner` in `job` is sent. Returns the bytes that will not be, and the first of them in `first`.
  [[nodiscard]] uint64_t drop(Job& job, const TransferState& owner, uint64_t& first);
  // The same, unless some of it was sent already: then false.
  [[nodiscard]] bool drop_unless_started(Job& job, TransferState& owner);
  // Those with blocks still to be handed out.
  [[nodiscard]] std::vector<std::shared_ptr<TransferState>> waiting(plan::Direction direction) const;

 private:
  static constexpr int kLevels = kPriorityMax - kPriorityMin + 1;
  struct List {
    Job* first = nullptr;
    Job* last = nullptr;
  };

  void link(std::shared_ptr<Job> job, bool front);  // with mutex_ held
  void unlink(Job& job);                            // with mutex_ held
  [[nodiscard]] Job* highest() const;               // with mutex_ held
  // Moves past dropped parts. False when nothing is left.
  [[nodiscard]] bool skip_dropped(Job& job) const;
  [[nodiscard]] QueuedBlock cut(Job& job) const;

  const BlockSizes sizes_;
  mutable std::mutex mutex_;
  std::array<List, kLevels> lists_ = {};              // guarded by mutex_
  std::array<uint64_t, kLevels / 64> occupied_ = {};  // bit set: the list has jobs; guarded by mutex_
  std::atomic<uint64_t> size_ = 0;                    // jobs; written under mutex_, read by workers about to sleep
};

}  // namespace headrace::transfer
