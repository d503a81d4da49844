// SPDX-License-Identifier: Apache-2.0
// Strides of tensors whose elements follow each other.
// Any thread: a pure function.
// Owns nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace headrace::format {

// The bytes of a tensor whose elements follow each other, and its strides in elements; nothing if no address space holds it.
inline std::optional<uint64_t> row_major(std::span<const uint64_t> shape, uint64_t element_bytes,
                                         std::vector<int64_t>& strides) {
  constexpr uint64_t kMax = INT64_MAX;
  uint64_t stride = 1;  // as if dimensions of no length had one
  bool empty = false;
  strides.resize(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(stride);
    empty |= shape[i] == 0;
    const uint64_t size = std::max<uint64_t>(shape[i], 1);
    if (size > kMax / stride) return std::nullopt;
    stride *= size;
  }
  if (element_bytes != 0 && stride > kMax / element_bytes) return std::nullopt;
  return empty ? 0 : stride * element_bytes;
}

}  // namespace headrace::format
