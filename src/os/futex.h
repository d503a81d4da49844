// SPDX-License-Identifier: Apache-2.0
// Sleep until a 32-bit word changes, with a timeout (std::atomic::wait has none).
// Any thread. The word must outlive the call.
// Owns nothing.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <optional>

namespace headrace::os {

// Returns when the word may differ from `expected`, when the time is over, or when a signal arrived: look again. True
// when it was a signal.
inline bool futex_wait(std::atomic<uint32_t>& word, uint32_t expected,
                       std::optional<std::chrono::nanoseconds> timeout = std::nullopt) noexcept {
  timespec limit = {};
  if (timeout) {
    const int64_t ns = timeout->count() < 0 ? 0 : timeout->count();
    limit = {.tv_sec = static_cast<time_t>(ns / 1'000'000'000), .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  }
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected,
                   timeout ? &limit : nullptr, nullptr, 0) != 0 &&
         errno == EINTR;
}

inline void futex_wake_all(std::atomic<uint32_t>& word) noexcept {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace headrace::os
