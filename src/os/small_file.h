// SPDX-License-Identifier: Apache-2.0
// A small ordinary file, read whole: an index, a line of /sys.
// Any thread.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <headrace/error.h>

namespace headrace::os {

// Never waits at a FIFO or device: what is no ordinary file is refused, as is one longer than `bytes_max` (EFBIG).
[[nodiscard]] Result<std::vector<std::byte>> read_small_file(const std::string& path, uint64_t bytes_max);

}  // namespace headrace::os
