// SPDX-License-Identifier: Apache-2.0
// Sizes by name.
// Constants, any thread, nothing owned.
// KiB, MiB and GiB are powers of two; GB in anything printed is 10^9.
#pragma once

#include <cstdint>

namespace headrace::base {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

}  // namespace headrace::base
