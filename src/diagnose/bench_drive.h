// SPDX-License-Identifier: Apache-2.0
// One pass over one file, as the settings say: the part of a measurement that is timed.
// The calling thread; other files have threads of their own.
// Refers to the caller's handle and memory, which are not in use any more when it returns.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include <headrace/benchmark.h>
#include <headrace/file.h>
#include <headrace/handle.h>

namespace headrace::diagnose {

struct Pass {
  Handle* handle = nullptr;
  File file;
  Region memory;  // a multiple of block_bytes; where it is shorter than the file, parts of the file share it
  IoDirection direction = IoDirection::read;
  RequestSize request = RequestSize::file;
  RequestOrder order = RequestOrder::overlapping;
  CopyMode copy = CopyMode::automatic;
  CacheMode cache = CacheMode::automatic;
  Durability durability = Durability::none;  // of writes
  uint64_t bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t blocks_at_once = 0;
};

struct PassEnd {
  using Clock = std::chrono::steady_clock;
  Clock::time_point transferred;  // every byte moved
  Clock::time_point durable;      // and, if asked for, synced
  std::string why;                // Route::why of the last request
};

// Ends early with interrupted() once `stop` is true.
[[nodiscard]] Result<PassEnd> drive(const Pass& pass, const std::atomic<bool>& stop);

}  // namespace headrace::diagnose
