// SPDX-License-Identifier: Apache-2.0
// Tells a caller's Progress how far a call is, no more often than it asked for.
// One thread.
// Borrows the Progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include <headrace/progress.h>

namespace headrace::convert {

class ProgressMeter {
 public:
  ProgressMeter(const Progress& progress, uint64_t total_bytes) : progress_(progress), total_bytes_(total_bytes) {}

  void add(std::string_view what, uint64_t bytes) {
    done_bytes_ += bytes;
    if (!progress_.show) return;
    constexpr auto kEvery = std::chrono::milliseconds(50);
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < kEvery) return;
    shown_ = now;
    progress_.show({.what = what, .done_bytes = done_bytes_, .total_bytes = total_bytes_});
  }

 private:
  const Progress& progress_;
  uint64_t total_bytes_;
  uint64_t done_bytes_ = 0;
  std::chrono::steady_clock::time_point shown_;
};

}  // namespace headrace::convert
