// SPDX-License-Identifier: Apache-2.0
// Loops over elements, without calls in them.
// Any thread: pure functions.
// Owns nothing.
#include "convert/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace headrace::convert {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t body = (half & 0x7fffU) << 13;
  // 2^112 moves the exponent from half's bias to float's; subnormals become normal on the way.
  const float scaled = std::bit_cast<float>(body) * 0x1p112F;
  const uint32_t special = (half & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const auto sign = static_cast<uint32_t>(bits >> 16 & 0x8000U);
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 leaves the subnormal half in the low bits, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000U) >> 13);
}

uint16_t float_to_bfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t nan = (bits >> 16 & 0x8000U) | 0x7fc0U;
  const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
}

// The five float8, by their definition: exponent and mantissa bits, bias, and what the codes at the top stand for.
enum class Top : uint8_t { ieee, one_nan, nan_is_minus_zero };
struct Float8 {
  int exponent_bits, mantissa_bits, bias;
  Top top;
};

float float8_value(uint8_t code, const Float8& kind) {
  const float sign = (code & 0x80U) != 0 ? -1.0F : 1.0F;
  const uint32_t exponent_max = (1U << kind.exponent_bits) - 1;
  const uint32_t exponent = (code & 0x7fU) >> kind.mantissa_bits;
  const uint32_t mantissa = code & ((1U << kind.mantissa_bits) - 1);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (kind.top == Top::nan_is_minus_zero && code == 0x80U) return kNan;
  if (kind.top == Top::one_nan && (code & 0x7fU) == 0x7fU) return kNan;
  if (kind.top == Top::ieee && exponent == exponent_max)
    return mantissa != 0 ? kNan : sign * std::numeric_limits<float>::infinity();
  const int scale = static_cast<int>(exponent == 0 ? 1 : exponent) - kind.bias - kind.mantissa_bits;
  const uint32_t whole = mantissa | (exponent == 0 ? 0 : 1U << kind.mantissa_bits);
  return sign * std::ldexp(static_cast<float>(whole), scale);
}

std::array<float, 256> make_table(const Float8& kind) {
  std::array<float, 256> table = {};
  for (uint32_t code = 0; code < 256; ++code)
    table[code] = float8_value(static_cast<uint8_t>(code), kind);
  return table;
}

// float8_e8m0fnu: powers of two, 255 is NaN.
std::array<float, 256> make_exponent_table() {
  std::array<float, 256> table = {};
  for (int code = 0; code < 255; ++code)
    table[static_cast<size_t>(code)] = std::ldexp(1.0F, code - 127);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}

const std::array<float, 256>& table_of(DType dtype) {
  static const std::array<float, 256> e4m3fn = make_table({4, 3, 7, Top::one_nan});
  static const std::array<float, 256> e5m2 = make_table({5, 2, 15, Top::ieee});
  static const std::array<float, 256> e4m3fnuz = make_table({4, 3, 8, Top::nan_is_minus_zero});
  static const std::array<float, 256> e5m2fnuz = make_table({5, 2, 16, Top::nan_is_minus_zero});
  static const std::array<float, 256> e8m0fnu = make_exponent_table();
  switch (dtype) {
    case DType::float8_e4m3fn: return e4m3fn;
    case DType::float8_e5m2: return e5m2;
    case DType::float8_e4m3fnuz: return e4m3fnuz;
    case DType::float8_e5m2fnuz: return e5m2fnuz;
    default: return e8m0fnu;
  }
}

// Calls `with` with a function from the address of an element to its value, and with the element's size.
template <class With>
void with_reader(DType dtype, With with) {
  const auto plain = [&]<class T>(T) {
    with([](const std::byte* at) { return load<T>(at); }, std::integral_constant<size_t, sizeof(T)>());
  };
  switch (dtype) {
    case DType::boolean:
    case DType::uint8:
    case DType::quint8: return plain(uint8_t{});
    case DType::int8:
    case DType::qint8: return plain(int8_t{});
    case DType::uint16: return plain(uint16_t{});
    case DType::int16: return plain(int16_t{});
    case DType::uint32: return plain(uint32_t{});
    case DType::int32:
    case DType::qint32: return plain(int32_t{});
    case DType::uint64: return plain(uint64_t{});
    case DType::int64: return plain(int64_t{});
    case DType::float32:
    case DType::complex64: return plain(float{});
    case DType::float64:
    case DType::complex128: return plain(double{});
    case DType::float16:
    case DType::complex32:
      return with([](const std::byte* at) { return half_to_float(load<uint16_t>(at)); },
                  std::integral_constant<size_t, 2>());
    case DType::bfloat16:
    case DType::bcomplex32:
      return with([](const std::byte* at) { return std::bit_cast<float>(uint32_t{load<uint16_t>(at)} << 16); },
                  std::integral_constant<size_t, 2>());
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
    case DType::float8_e4m3fnuz:
    case DType::float8_e5m2fnuz:
    case DType::float8_e8m0fnu:
      return with([table = table_of(dtype).data()](const std::byte* at) { return table[std::to_integer<size_t>(*at)]; },
                  std::integral_constant<size_t, 1>());
    default: return;
  }
}

template <class Value>
void add_all(ElementStats& stats, const std::byte* at, size_t count, size_t step, auto read) {
  using Limits = std::numeric_limits<Value>;
  constexpr bool kFloating = std::is_floating_point_v<Value>;
  // Short runs, so that the counters fit the width of the values.
  constexpr size_t kRun = 4096;
  for (size_t begin = 0; begin < count; begin += kRun) {
    const size_t run = std::min(kRun, count - begin);
    Value low = kFloating ? Limits::infinity() : Limits::max();
    Value high = kFloating ? -Limits::infinity() : Limits::lowest();
    uint32_t nan = 0, inf = 0, zero = 0;
    for (size_t i = 0; i < run; ++i) {
      const Value value = read(at + (begin + i) * step);
      if constexpr (kFloating) {
        nan += value != value ? 1U : 0U;
        inf += value == Limits::infinity() || value == -Limits::infinity() ? 1U : 0U;
      }
      zero += value == Value{} ? 1U : 0U;
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
    stats.nan += nan;
    stats.inf += inf;
    stats.zero += zero;
    if (nan == run) continue;
    stats.min = std::min(stats.min, static_cast<double>(low));
    stats.max = std::max(stats.max, static_cast<double>(high));
  }
  stats.elements += count;
}

}  // namespace

bool is_float_target(DType dtype) noexcept {
  return dtype == DType::float64 || dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16;
}

bool is_float_source(DType dtype) noexcept {
  switch (dtype) {
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
    case DType::float8_e4m3fnuz:
    case DType::float8_e5m2fnuz:
    case DType::float8_e8m0fnu: return true;
    default: return is_float_target(dtype);
  }
}

uint64_t convert_elements(DType from, std::span<const std::byte> source, DType to,
                          std::span<std::byte> target) noexcept {
  uint64_t overflows = 0;
  with_reader(from, [&](auto read, auto step) {
    using Value = decltype(read(source.data()));
    const size_t count = source.size() / step;
    // `infinite` tells whether what `turn` gave is.
    const auto each = [&](auto turn, auto infinite) {
      constexpr size_t kWidth = sizeof(turn(Value{}));
      for (size_t i = 0; i < count; ++i) {
        const Value value = read(source.data() + i * step);
        const auto turned = turn(value);
        store(target.data() + i * kWidth, turned);
        if constexpr (std::is_floating_point_v<Value>)
          overflows += infinite(turned) && std::abs(value) <= std::numeric_limits<Value>::max() ? 1U : 0U;
      }
    };
    const auto is_infinite = [](auto value) { return std::abs(value) > std::numeric_limits<decltype(value)>::max(); };
    if constexpr (std::is_floating_point_v<Value>) {
      switch (to) {
        case DType::float64: return each([](Value v) { return static_cast<double>(v); }, is_infinite);
        case DType::float32: return each([](Value v) { return static_cast<float>(v); }, is_infinite);
        case DType::float16:
          return each([](Value v) { return float_to_half(static_cast<float>(v)); },
                      [](uint16_t half) { return (half & 0x7fffU) == 0x7c00U; });
        case DType::bfloat16:
          return each([](Value v) { return float_to_bfloat(static_cast<float>(v)); },
                      [](uint16_t bits) { return (bits & 0x7fffU) == 0x7f80U; });
        default: return;
      }
    }
  });
  return overflows;
}

uint32_t stats_element_bytes(DType dtype) noexcept {
  uint32_t bytes = 0;
  with_reader(dtype, [&](auto, auto step) { bytes = step; });
  return bytes;
}

void add_stats(DType dtype, std::span<const std::byte> elements, ElementStats& stats) noexcept {
  with_reader(dtype, [&](auto read, auto step) {
    using Value = decltype(read(elements.data()));
    add_all<Value>(stats, elements.data(), elements.size() / step, step, read);
  });
}

void gather(const StridedView& view, uint64_t first_element, std::span<std::byte> target) noexcept {
  const size_t dimensions = view.shape.size();
  const uint64_t element_bytes = view.element_bytes;
  const auto stride = [&](size_t d) { return static_cast<uint64_t>(view.strides[d]) * element_bytes; };
  std::array<uint64_t, 64> index = {};  // torch has no more dimensions
  uint64_t from = 0;                    // of the next element, in the extent
  for (size_t d = dimensions; d-- > 0; first_element /= view.shape[d]) {
    index[d] = first_element % view.shape[d];
    from += index[d] * stride(d);
  }
  const size_t last = dimensions == 0 ? 0 : dimensions - 1;
  const uint64_t row = dimensions == 0 ? 1 : view.shape[last];
  const uint64_t step = dimensions == 0 ? 0 : stride(last);
  for (uint64_t done = 0; done < target.size();) {
    const uint64_t run = std::min(row - index[last], (target.size() - done) / element_bytes);
    for (uint64_t i = 0; i < run; ++i, done += element_bytes, from += step)
      std::memcpy(target.data() + done, view.extent.data() + from, element_bytes);
    index[last] += run;
    // The first element of the next row.
    for (size_t d = last; dimensions != 0 && index[d] == view.shape[d]; --d) {
      from -= index[d] * stride(d);
      index[d] = 0;
      if (d == 0) return;
      ++index[d - 1];
      from += stride(d - 1);
    }
  }
}

void negate(DType dtype, std::span<std::byte> elements, Negate which) noexcept {
  const size_t part = stats_element_bytes(dtype);
  if (part == 0) return;
  const size_t first = which == Negate::imaginary ? part : 0;
  const size_t step = which == Negate::imaginary ? 2 * part : part;
  // The sign is the highest bit of the last byte.
  for (size_t i = first; i + part <= elements.size(); i += step)
    elements[i + part - 1] ^= std::byte{0x80};
}

}  // namespace headrace::convert
