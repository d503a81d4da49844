// SPDX-License-Identifier: Apache-2.0
// Conversions against their definitions: every 16-bit pattern, edges and random floats; statistics; gathering by strides.
// One thread.
// Owns nothing.
#include "convert/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
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
  const std::vector<double> wide = {1e300, -1e39, 70000.0, INFINITY, -INFINITY, NAN, -0.0};
  std::vector<std::byte> floats(wide.size() * 4);
  EXPECT_EQ(convert_elements(DType::float64, bytes_of(wide), DType::float32, floats), 2U);
  EXPECT_EQ(convert_elements(DType::float64, bytes_of(wide), DType::float16, std::span(floats).first(wide.size() * 2)),
            3U);
  const std::vector<uint8_t> codes = {0x7b, 0x7c, 0xfc, 0x7d};  // of e5m2: 57344, the infinities, a NaN
  EXPECT_EQ(convert_elements(DType::float8_e5m2, bytes_of(codes), DType::float16, std::span(target).first(8)), 0U);
  const std::vector<uint8_t> powers = {142, 143, 254, 255};  // of e8m0: 2^15, 2^16, 2^127, NaN
  EXPECT_EQ(convert_elements(DType::float8_e8m0fnu, bytes_of(powers), DType::float16, std::span(target).first(8)), 2U);
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

// Every code of a type of one or two bytes, three times over, against what each code is worth as a float64.
TEST(Elements, StatsOfEveryCodeAgreeWithTheValuesOfTheCodes) {
  const auto check = [](DType dtype, auto code, auto value_of_code) {
    using Code = decltype(code);
    constexpr uint32_t kCount = uint32_t{std::numeric_limits<Code>::max()} + 1;
    // Parts of the codes too: their lowest and highest are not those of all.
    for (const auto& [first, count] : {std::pair{0U, kCount}, {kCount / 3, kCount / 5}, {kCount * 3 / 4, kCount / 7}}) {
      ElementStats expected;
      std::vector<Code> codes;
      for (uint32_t i = 0; i < 3 * count; ++i) {
        codes.push_back(static_cast<Code>(first + i % count));
        const double value = value_of_code(codes.back());
        expected.nan += std::isnan(value) ? 1U : 0U;
        expected.inf += std::isinf(value) ? 1U : 0U;
        expected.zero += value == 0 ? 1U : 0U;
        if (std::isnan(value)) continue;
        expected.min = std::min(expected.min, value);
        expected.max = std::max(expected.max, value);
      }
      ElementStats stats;
      add_stats(dtype, bytes_of(codes), stats);
      const std::string what(dtype_facts(dtype).name);
      EXPECT_EQ(stats.elements, codes.size()) << what << first;
      EXPECT_EQ(stats.nan, expected.nan) << what << first;
      EXPECT_EQ(stats.inf, expected.inf) << what << first;
      EXPECT_EQ(stats.zero, expected.zero) << what << first;
      EXPECT_EQ(stats.min, expected.min) << what << first;
      EXPECT_EQ(stats.max, expected.max) << what << first;
    }
  };
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2, DType::float8_e4m3fnuz, DType::float8_e5m2fnuz,
                            DType::float8_e8m0fnu})
    check(dtype, uint8_t{}, [&](uint8_t code) { return converted<double>(dtype, code, DType::float64); });
  for (const DType dtype : {DType::float16, DType::complex32})
    check(dtype, uint16_t{}, half_value);
  for (const DType dtype : {DType::bfloat16, DType::bcomplex32})
    check(dtype, uint16_t{}, [](uint16_t code) { return double{std::bit_cast<float>(uint32_t{code} << 16)}; });
  check(DType::uint8, uint8_t{}, [](uint8_t code) { return static_cast<double>(code); });
  check(DType::int8, uint8_t{}, [](uint8_t code) { return static_cast<double>(static_cast<int8_t>(code)); });
  check(DType::uint16, uint16_t{}, [](uint16_t code) { return static_cast<double>(code); });
  check(DType::int16, uint16_t{}, [](uint16_t code) { return static_cast<double>(static_cast<int16_t>(code)); });
}

TEST(Elements, StatsOfWideElementsAgreeWithALoopOverThem) {
  const auto check = [](DType dtype, auto edges) {
    using Value = decltype(edges)::value_type;
    std::mt19937_64 random(11);
    for (const size_t count : {size_t{1}, size_t{7}, size_t{1023}, size_t{1025}, size_t{5000}}) {
      std::vector<Value> values = edges;
      while (values.size() < count)
        values.push_back(
            std::bit_cast<Value>(static_cast<std::conditional_t<sizeof(Value) == 4, uint32_t, uint64_t>>(random())));
      std::ranges::shuffle(values, random);
      ElementStats expected;
      for (const Value value : values) {
        const auto as_double = static_cast<double>(value);
        expected.nan += std::isnan(as_double) ? 1U : 0U;
        expected.inf += std::isinf(as_double) ? 1U : 0U;
        expected.zero += value == 0 ? 1U : 0U;
        if (std::isnan(as_double)) continue;
        expected.min = std::min(expected.min, as_double);
        expected.max = std::max(expected.max, as_double);
      }
      ElementStats stats;
      add_stats(dtype, bytes_of(values), stats);
      EXPECT_EQ(stats.nan, expected.nan);
      EXPECT_EQ(stats.inf, expected.inf);
      EXPECT_EQ(stats.zero, expected.zero);
      EXPECT_EQ(stats.min, expected.min);
      EXPECT_EQ(stats.max, expected.max);
    }
  };
  check(DType::float32, std::vector<float>{0, -0.0F, 1e-45F, NAN, -NAN, INFINITY});
  check(DType::float64, std::vector<double>{0, -0.0, 5e-324, NAN, -NAN, -INFINITY});
  check(DType::complex128, std::vector<double>{-1, 2});
  check(DType::uint32, std::vector<uint32_t>{0, 0xffffffff});
  check(DType::int32, std::vector<int32_t>{0, -1, std::numeric_limits<int32_t>::min()});
  check(DType::uint64, std::vector<uint64_t>{0, ~uint64_t{0}});
  check(DType::int64, std::vector<int64_t>{0, std::numeric_limits<int64_t>::min()});
}

TEST(Elements, ManyElementsAreTurnedAsOneByOne) {
  std::mt19937 random(3);
  std::vector<float> values(5003);
  for (float& value : values)
    value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  for (const DType from : {DType::float32, DType::float16, DType::bfloat16, DType::float64}) {
    std::vector<std::byte> source(values.size() * stats_element_bytes(from));
    (void)convert_elements(DType::float32, bytes_of(values), from, source);
    const std::span<const std::byte> all(source);
    for (const DType to : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
      const size_t width = stats_element_bytes(to);
      std::vector<std::byte> at_once(values.size() * width);
      std::vector<std::byte> one_by_one(values.size() * width);
      const uint64_t overflows = convert_elements(from, source, to, at_once);
      uint64_t sum = 0;
      for (size_t i = 0; i < values.size(); ++i)
        sum += convert_elements(from, all.subspan(i * stats_element_bytes(from), stats_element_bytes(from)), to,
                                std::span(one_by_one).subspan(i * width, width));
      EXPECT_EQ(at_once, one_by_one);
      EXPECT_EQ(overflows, sum);
    }
  }
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
