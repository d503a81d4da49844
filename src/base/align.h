// SPDX-License-Identifier: Apache-2.0
// Rounding to powers of two, in 64 bits.
// Pure functions, any thread, nothing owned.
// Every `alignment` is a power of two; align_up of a value within one alignment of 2^64 wraps and must be ruled out before.
#pragma once

#include <cstdint>

namespace headrace::base {

constexpr bool is_power_of_two(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }
constexpr uint64_t align_down(uint64_t value, uint64_t alignment) { return value & ~(alignment - 1); }
constexpr uint64_t align_up(uint64_t value, uint64_t alignment) { return align_down(value + alignment - 1, alignment); }
constexpr bool is_aligned(uint64_t value, uint64_t alignment) { return (value & (alignment - 1)) == 0; }

}  // namespace headrace::base
