// SPDX-License-Identifier: Apache-2.0
// Arithmetic on elements as they lie in files: little-endian, at any address.
// Any thread: pure functions.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include <headrace/tensor.h>

namespace headrace::convert {

// One of float64, float32, float16, bfloat16: what floating-point elements can be turned into.
[[nodiscard]] bool is_float_target(DType dtype) noexcept;
// And what they can be turned from: these and the five float8.
[[nodiscard]] bool is_float_source(DType dtype) noexcept;

// `source` holds whole elements of `from`, `target` as many of `to`. Rounds to the nearest, ties to even, as torch's .to()
// does; float64 goes to 16 bits by way of float32, as there. A NaN stays one, with its sign and without its payload.
// Returns how many finite elements became infinite.
uint64_t convert_elements(DType from, std::span<const std::byte> source, DType to,
                          std::span<std::byte> target) noexcept;

struct ElementStats {
  uint64_t elements = 0;  // of complex ones each part counts
  uint64_t nan = 0;
  uint64_t inf = 0;
  uint64_t zero = 0;
  double min = std::numeric_limits<double>::infinity();  // of those that are not NaN
  double max = -std::numeric_limits<double>::infinity();
};

// Bytes of one element, or of one part of a complex one, as add_stats() reads them; 0 where it cannot (elements below a byte).
[[nodiscard]] uint32_t stats_element_bytes(DType dtype) noexcept;
// Adds whole elements.
void add_stats(DType dtype, std::span<const std::byte> elements, ElementStats& stats) noexcept;

// How the elements of a strided tensor lie in its extent, whose first byte is that of the element of index 0, 0, ...
struct StridedView {
  std::span<const std::byte> extent;
  std::span<const uint64_t> shape;
  std::span<const int64_t> strides;  // in elements, none negative
  uint32_t element_bytes = 0;
};
// Fills `target` with elements in row-major order, from `first_element` on.
void gather(const StridedView& view, uint64_t first_element, std::span<std::byte> target) noexcept;

// Turns the sign of every element, or of the second part of every complex one.
enum class Negate : uint8_t { all, imaginary };
void negate(DType dtype, std::span<std::byte> elements, Negate which) noexcept;

}  // namespace headrace::convert
