// SPDX-License-Identifier: Apache-2.0
// How long until a deadline, without overflow for the earliest and the latest time there is.
// Any thread.
// Owns nothing.
#pragma once

#include <cstdint>

#include "engine/engine.h"

namespace headrace::engine {

inline constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

// 0 when the deadline is now or over.
[[nodiscard]] inline int64_t nanoseconds_until(Clock::time_point deadline) noexcept {
  const Clock::time_point now = Clock::now();
  if (deadline <= now) return 0;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - now).count();
}

}  // namespace headrace::engine
