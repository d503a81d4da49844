// SPDX-License-Identifier: Apache-2.0
// The maxima that all engines share.
// Constants, any thread.
// Owns nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace headrace::engine {

// What one system call moves at most: the kernel cuts longer requests to this and answers with a short count.
inline constexpr uint64_t kSystemCallBytesMax = 0x7ffff000;

// What engines offer: the largest piece that io_uring can register, well below the limit above.
inline constexpr uint32_t kBlockBytesMax = static_cast<uint32_t>(base::kGiB);
static_assert(kBlockBytesMax < kSystemCallBytesMax);

// Half of what io_uring allows for a submission queue. A larger wish is cut: caps().depth tells.
inline constexpr uint32_t kDepthMax = 16384;

[[nodiscard]] constexpr uint32_t clamp_depth(uint32_t depth) { return std::clamp(depth, 1u, kDepthMax); }

}  // namespace headrace::engine
