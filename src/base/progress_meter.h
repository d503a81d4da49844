// SPDX-License-Identifier: Apache-2.0
// Progress of a call that moves many bytes: shown at most some twenty times a second, and asked whether to go on as often.
// One thread.
// Refers to the caller's Progress, which must outlive it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include <headrace/progress.h>

namespace headrace::base {

class ProgressMeter {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kEvery = std::chrono::milliseconds(50);

  ProgressMeter(const Progress& progress, uint64_t total_bytes) : progress_(progress), total_bytes_(total_bytes) {}

  // True: the call is to end with interrupted(). `extra_bytes` are of the step under way, not yet added.
  [[nodiscard]] bool tick(std::string_view what, uint64_t extra_bytes = 0) {
    const Clock::time_point now = Clock::now();
    if (now < next_) return stop_;
    next_ = now + kEvery;
    if (progress_.show)
      progress_.show({.what = what, .done_bytes = done_bytes_ + extra_bytes, .total_bytes = total_bytes_});
    if (progress_.interrupted && progress_.interrupted()) stop_ = true;
    return stop_;
  }
  void add(uint64_t bytes) noexcept { done_bytes_ += bytes; }
  // For callers whose reads ask by themselves whether to go on.
  void add(std::string_view what, uint64_t bytes) {
    add(bytes);
    (void)tick(what);
  }
  [[nodiscard]] uint64_t done_bytes() const noexcept { return done_bytes_; }

 private:
  const Progress& progress_;
  uint64_t total_bytes_;
  uint64_t done_bytes_ = 0;
  Clock::time_point next_{};
  bool stop_ = false;
};

}  // namespace headrace::base
