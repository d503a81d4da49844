// SPDX-License-Identifier: Apache-2.0
// Gets a ring that has been seen to work, with the best flags this kernel takes, or the reason why there is none.
// The thread that calls it must be the one that uses the ring.
// Owns the ring.
#pragma once

#include <cstdint>
#include <string>

#include <liburing.h>

#include <headrace/error.h>

namespace headrace::engine {

struct Ring {
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  // Room for `depth` blocks and one wake-up read; halves the depth while the kernel lacks memory for it.
  [[nodiscard]] Status open(uint32_t depth_wanted);

  io_uring ring = {};
  bool is_open = false;
  uint32_t depth = 0;
  uint32_t memory_slots = 0;
  std::string detail;  // flags that worked
};

}  // namespace headrace::engine
