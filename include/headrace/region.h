// SPDX-License-Identifier: Apache-2.0
// A Region names bytes somewhere: pointer, size, device. It owns nothing.
// Any thread. What it points to must live until every transfer that uses it is done; memory of a headrace::Buffer
// is kept alive by the library itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include <headrace/device.h>

namespace headrace {

struct Region {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  Device device = {};
};

struct ConstRegion {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  Device device = {};
};

}  // namespace headrace
