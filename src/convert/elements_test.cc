// SPDX-License-Identifier: Apache-2.0
// Conversions against their definitions: every 16-bit pattern, edges and random floats; statistics; gathering by strides.
// One thread.
// Owns nothing.
#include "convert/elements.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace headrace::convert {
namespace {

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T, class S>
T converted(DType from, S value, DType to) {
  std::vector<std::byte> target(sizeof(T));
  (void)convert_elements(from, bytes_of(std::vector<S>{value}), to, target);
  T result;
  std::memcpy(&result, target.data(), sizeof result);
  return result;
}

// The value of a half by the standard's words: sign, exponent, fraction.
double half_value(uint16_t half) {
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  const int exponent = half >> 10 & 0x1f;
  const double fraction = half & 0x3ff;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

// The half nearest to a value, found by trying all: ties go to the even one.
uint16_t nearest_half(float value) {
  uint16_t best = 0;
  double distance = INFINITY;
  // 65520 is half-way to what would come next, and rounds to infinity, whose code is even.
  for (uint32_t code = 0; code <= 0x7c00; ++code) {
    const double candidate = code == 0x7c00 ? 65536.0 : half_value(static_cast<uint16_t>(code));
    const double d = std::abs(candidate - std::abs(double{value}));
    if (d < distance || (d == distance && code % 2 == 0)) {
      distance = d;
      best = static_cast<uint16_t>(code);
    }
  }
  if (std::abs(value) > 65536.0F) best = 0x7c00;
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000U : 0U));
}

TEST(Elements, EveryHalfAndBfloatHasItsValueAsFloatAndComesBack) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float half = converted<float>(DType::float16, bits, DType::float32);
    const float bfloat = converted<float>(DType::bfloat16, bits, DType::float32);
    EXPECT_EQ(std::bit_cast<uint32_t>(bfloat), uint32_t{code} << 16);
    if (std::isnan(half_value(bits))) {
      EXPECT_TRUE(std::isnan(half)) << code;
      EXPECT_EQ(converted<uint16_t>(DType::float32, half, DType::float16), (code & 0x8000U) | 0x7e00U) << code;
    } else {
      EXPECT_EQ(half, half_value(bits)) << code;
      EXPECT_EQ(std::signbit(half), (code & 0x8000U) != 0) << code;
      EXPECT_EQ(converted<uint16_t>(DType::float32, half, DType::float16), bits) << code;
    }
    if (!std::isnan(bfloat)) {
      EXPECT_EQ(converted<uint16_t>(DType::float32, bfloat, DType::bfloat16), bits) << code;
    }
  }
}

TEST(Elements, FloatsRoundToTheNearestHalfTiesToEven) {
  std::vector<float> values = {0.0F,         -0.0F,        65504.0F, 65519.996F, 65520.0F,   65536.0F,
                               1e30F,        -1e30F,       0x1p-24F, 0x1p-25F,   0x1.8p-25F, 0x1p-26F,
                               0x1.ffcp-15F, 0x1.ffep-15F, 0x1p-14F, 1.0009766F, 1.0004883F, 1.0014648F};
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i)
    values.push_back(
        std::ldexp(std::uniform_real_distribution<float>(-2, 2)(random), static_cast<int>(random() % 44) - 26));
  for (const float value : values)
    EXPECT_EQ(converted<uint16_t>(DType::float32, value, DType::float16), nearest_half(value)) << value;
}

TEST(Elements, FloatsRoundToTheNearestBfloatTiesToEven) {
  const auto turned = [](uint32_t bits) {
    return converted<uint16_t>(DType::float32, std::bit_cast<float>(bits), DType::bfloat16);
  };
  EXPECT_EQ(turned(0x3f808000U), 0x3f80U);  // a tie, down to even
  EXPECT_EQ(turned(0x3f818000U), 0x3f82U);  // a tie, up to even
  EXPECT_EQ(turned(0x3f808001U), 0x3f81U);
  EXPECT_EQ(turned(0x7f7fffffU), 0x7f80U);  // the largest float becomes infinite
  EXPECT_EQ(turned(0xff800000U), 0xff80U);
  EXPECT_EQ(turned(0x7f800001U), 0x7fc0U);  // a NaN whose payload is cut off stays one
}

TEST(Elements, ValuesThatBecomeInfiniteAreCounted) {
  const std::vector<float> values = {1.0F, 70000.0F, -1e9F, INFINITY, NAN};
  std::vector<std::byte> target(values.size() * 2);
  EXPECT_EQ(convert_elements(DType::float32, bytes_of(values), DType::float16, target), 2U);
  EXPECT_EQ(convert_elements(DType::float32, bytes_of(values), DType::bfloat16, target), 0U);
}

TEST(Elements, StatsCountEachKindAndLeaveNanOutOfMinimumAndMaximum) {
  ElementStats stats;
  std::vector<float> values(10000, 1.5F);
  values[17] = NAN;
  values[5000] = INFINITY;
  values[9999] = -3.0F;
  values[1] = -0.0F;
  add_stats(DType::float32, bytes_of(values), stats);
  EXPECT_EQ(stats.elements, 10000U);
  EXPECT_EQ(stats.nan, 1U);
  EXPECT_EQ(stats.inf, 1U);
  EXPECT_EQ(stats.zero, 1U);
  EXPECT_EQ(stats.min, -3.0);
  EXPECT_EQ(stats.max, INFINITY);
}

TEST(Elements, StatsOfIntegersAndOfNothingButNan) {
  ElementStats integers;
  add_stats(DType::int8, bytes_of(std::vector<int8_t>{-128, 0, 127}), integers);
  EXPECT_EQ(integers.min, -128.0);
  EXPECT_EQ(integers.max, 127.0);
  ElementStats none;
  add_stats(DType::float64, bytes_of(std::vector<double>{NAN, NAN}), none);
  EXPECT_EQ(none.nan, 2U);
  EXPECT_GT(none.min, none.max);
}

TEST(Elements, GatherWalksStridesInRowMajorOrderFromAnyElement) {
  std::vector<uint16_t> extent(100);
  for (uint16_t i = 0; i < 100; ++i)
    extent[i] = i;
  const std::vector<std::byte> bytes = bytes_of(extent);
  const std::vector<uint64_t> shape = {3, 2, 4};
  const std::vector<int64_t> strides = {1, 40, 7};
  const StridedView view = {.extent = bytes, .shape = shape, .strides = strides, .element_bytes = 2};
  std::vector<uint16_t> expected;
  for (uint64_t a = 0; a < 3; ++a)
    for (uint64_t b = 0; b < 2; ++b)
      for (uint64_t c = 0; c < 4; ++c)
        expected.push_back(static_cast<uint16_t>(a + 40 * b + 7 * c));
  for (size_t first = 0; first < expected.size(); ++first) {
    for (size_t count = 1; first + count <= expected.size(); ++count) {
      std::vector<uint16_t> target(count);
      gather(view, first, std::as_writable_bytes(std::span(target)));
      EXPECT_TRUE(std::equal(target.begin(), target.end(), expected.begin() + static_cast<ptrdiff_t>(first)));
    }
  }
  std::vector<uint16_t> scalar(1);
  gather({.extent = bytes, .shape = {}, .strides = {}, .element_bytes = 2}, 0,
         std::as_writable_bytes(std::span(scalar)));
  EXPECT_EQ(scalar[0], 0);
}

TEST(Elements, NegateTurnsTheSignOfAllOrOfTheImaginaryPart) {
  std::vector<float> values = {1, 2, -3, 4};
  negate(DType::complex64, std::as_writable_bytes(std::span(values)), Negate::imaginary);
  EXPECT_EQ(values, (std::vector<float>{1, -2, -3, -4}));
  negate(DType::complex64, std::as_writable_bytes(std::span(values)), Negate::all);
  EXPECT_EQ(values, (std::vector<float>{-1, 2, 3, 4}));
}

TEST(Elements, Float8CodesHaveTheValuesOfTheirStandard) {
  const auto value = [](DType dtype, uint8_t code) { return converted<float>(dtype, code, DType::float32); };
  EXPECT_EQ(value(DType::float8_e4m3fn, 0x7e), 448.0F);
  EXPECT_TRUE(std::isnan(value(DType::float8_e4m3fn, 0x7f)));
  EXPECT_EQ(value(DType::float8_e4m3fn, 0x01), 0x1p-9F);
  EXPECT_EQ(value(DType::float8_e5m2, 0x7b), 57344.0F);
  EXPECT_EQ(value(DType::float8_e5m2, 0x7c), INFINITY);
  EXPECT_EQ(value(DType::float8_e5m2, 0xfc), -INFINITY);
  EXPECT_TRUE(std::isnan(value(DType::float8_e4m3fnuz, 0x80)));
  EXPECT_EQ(value(DType::float8_e4m3fnuz, 0x7f), 240.0F);
  EXPECT_EQ(value(DType::float8_e5m2fnuz, 0x7f), 57344.0F);
  EXPECT_EQ(value(DType::float8_e8m0fnu, 127), 1.0F);
}

}  // namespace
}  // namespace headrace::convert
