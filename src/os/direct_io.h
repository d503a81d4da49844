// SPDX-License-Identifier: Apache-2.0
// What direct I/O on one open file needs, asked of the system: statx, else the block device below.
// Any thread.
// Owns nothing.
#pragma once

#include <cstdint>

namespace headrace::os {

struct DirectAlignment {
  uint32_t memory_bytes = 0;  // of the address
  uint32_t offset_bytes = 0;  // of offset and length
  bool told = false;          // the system told; else the fields hold the page size, the safest choice
  bool refused = false;       // the system says that this file has no direct I/O
};

[[nodiscard]] DirectAlignment query_direct_alignment(int descriptor) noexcept;

[[nodiscard]] uint32_t page_bytes() noexcept;

}  // namespace headrace::os
