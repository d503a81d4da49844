// SPDX-License-Identifier: Apache-2.0
// Loops over elements as compilers turn them into vector code: masks in place of branches, counters as wide as the elements.
// Any thread: pure functions.
// Owns nothing.
#include "convert/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

// All ones where `condition` holds.
template <class T>
T mask(bool condition) {
  return condition ? static_cast<T>(~T{0}) : T{0};
}

float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t body = (half & 0x7fffU) << 13;
  // 2^112 moves the exponent from half's bias to float's; subnormals become normal on the way.
  const float scaled = std::bit_cast<float>(body) * 0x1p112F;
  const uint32_t special = mask<uint32_t>((half & 0x7c00U) == 0x7c00U) & 0x7f800000U;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

// All ones where a < b, both 0 or more: what GCC 12 makes no branch of.
int32_t below(int32_t a, int32_t b) { return (a - b) >> 31; }

uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14: adding 0.5 leaves the subnormal half in the low bits, rounded.
  const int32_t subnormal = std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000;
  const int32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  const int32_t is_small = below(magnitude, 0x38800000);
  const int32_t is_large = ~below(magnitude, 0x477ff000);  // 65520 and more round to infinity
  const int32_t is_nan = below(0x7f800000, magnitude);
  const int32_t finite = (subnormal & is_small) | (normal & ~is_small);
  const int32_t half = (finite & ~is_large) | (0x7c00 & is_large) | (0x0200 & is_nan) | (bits >> 16 & 0x8000);
  return static_cast<uint16_t>(half);
}

#if defined(__x86_64__)
// The same with the instruction for it, which nearly every processor has, eight at once. Returns how many were turned.
__attribute__((target("avx,f16c"))) size_t floats_to_halves_f16c(const std::byte* __restrict source,
                                                                 std::byte* __restrict target, size_t count) {
  constexpr size_t kAtOnce = 8;
  const __m128i sign = _mm_set1_epi16(INT16_MIN), infinity = _mm_set1_epi16(0x7c00), nan = _mm_set1_epi16(0x7e00);
  size_t done = 0;
  for (; done + kAtOnce <= count; done += kAtOnce) {
    const auto* const floats = reinterpret_cast<const float*>(source + done * sizeof(float));
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(floats), _MM_FROUND_TO_NEAREST_INT);
    // It keeps what fits of a NaN's payload: one bit pattern on every machine is worth more.
    const __m128i is_nan = _mm_cmpgt_epi16(_mm_andnot_si128(sign, halves), infinity);
    const __m128i quiet = _mm_or_si128(_mm_and_si128(halves, sign), nan);
    const __m128i result = _mm_or_si128(_mm_andnot_si128(is_nan, halves), _mm_and_si128(is_nan, quiet));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + done * sizeof(uint16_t)), result);
  }
  return done;
}
#endif

uint16_t float_to_bfloat(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  const int32_t is_nan = below(0x7f800000, bits & 0x7fffffff);
  const auto unsigned_bits = static_cast<uint32_t>(bits);
  const auto rounded = static_cast<int32_t>((unsigned_bits + 0x7fffU + (unsigned_bits >> 16 & 1U)) >> 16);
  return static_cast<uint16_t>((rounded & ~is_nan) | (((bits >> 16 & 0x8000) | 0x7fc0) & is_nan));
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

// How the bits of a type order its values.
enum class Order : uint8_t { unsigned_integer, signed_integer, sign_and_magnitude };
template <class Unsigned>
struct Codes {
  using Bits = Unsigned;
  using Signed = std::make_signed_t<Unsigned>;
  static constexpr Signed kMax = std::numeric_limits<Signed>::max();
  static constexpr Signed kMin = std::numeric_limits<Signed>::min();
  Order order = Order::unsigned_integer;
  Signed infinity = 0;  // its magnitude; 0 where there is none
  Signed last = kMax;   // what is above, in magnitude (without a sign: as a key), is NaN
  bool minus_zero_is_nan = false;
  bool has_zero = true;

  // Keys are signed integers that order as the values do.
  [[nodiscard]] constexpr Signed key(Bits bits) const {
    const auto same = static_cast<Signed>(bits);
    if (order == Order::signed_integer) return same;
    if (order == Order::unsigned_integer) return static_cast<Signed>(same ^ kMin);
    const auto sign = static_cast<Signed>(same >> (8 * sizeof(Bits) - 1));
    return static_cast<Signed>(same ^ static_cast<Signed>(sign & kMax));
  }
  // Each of the three is its own inverse.
  [[nodiscard]] constexpr Bits bits(Signed key_of_bits) const {
    return static_cast<Bits>(key(static_cast<Bits>(key_of_bits)));
  }
};
template <class Bits>
constexpr Codes<Bits> floating(std::make_signed_t<Bits> infinity) {
  return {.order = Order::sign_and_magnitude, .infinity = infinity, .last = infinity};
}
constexpr Codes<uint8_t> kE4m3fn = {.order = Order::sign_and_magnitude, .last = 0x7e};
constexpr Codes<uint8_t> kFnuz = {.order = Order::sign_and_magnitude, .minus_zero_is_nan = true};
constexpr Codes<uint8_t> kE8m0fnu = {.order = Order::unsigned_integer, .last = 0x7e, .has_zero = false};

template <auto kValue>
using Constant = std::integral_constant<decltype(kValue), kValue>;
template <class Bits>
constexpr Codes<Bits> kUnsigned = {.order = Order::unsigned_integer};
template <class Bits>
constexpr Codes<Bits> kSigned = {.order = Order::signed_integer};

// Calls `with` with the Codes of a type as a constant, of a complex one with those of its parts; not at all where there are
// none: elements below a byte.
template <class With>
void with_codes(DType dtype, With with) {
  switch (dtype) {
    case DType::boolean:
    case DType::uint8:
    case DType::quint8: return with(Constant<kUnsigned<uint8_t>>());
    case DType::int8:
    case DType::qint8: return with(Constant<kSigned<uint8_t>>());
    case DType::uint16: return with(Constant<kUnsigned<uint16_t>>());
    case DType::int16: return with(Constant<kSigned<uint16_t>>());
    case DType::uint32: return with(Constant<kUnsigned<uint32_t>>());
    case DType::int32:
    case DType::qint32: return with(Constant<kSigned<uint32_t>>());
    case DType::uint64: return with(Constant<kUnsigned<uint64_t>>());
    case DType::int64: return with(Constant<kSigned<uint64_t>>());
    case DType::float64:
    case DType::complex128: return with(Constant<floating<uint64_t>(0x7ff0000000000000)>());
    case DType::float32:
    case DType::complex64: return with(Constant<floating<uint32_t>(0x7f800000)>());
    case DType::float16:
    case DType::complex32: return with(Constant<floating<uint16_t>(0x7c00)>());
    case DType::bfloat16:
    case DType::bcomplex32: return with(Constant<floating<uint16_t>(0x7f80)>());
    case DType::float8_e5m2: return with(Constant<floating<uint8_t>(0x7c)>());
    case DType::float8_e4m3fn: return with(Constant<kE4m3fn>());
    case DType::float8_e4m3fnuz:
    case DType::float8_e5m2fnuz: return with(Constant<kFnuz>());
    case DType::float8_e8m0fnu: return with(Constant<kE8m0fnu>());
    default: return;
  }
}

template <auto kCodes>
struct Counted {
  using Signed = typename decltype(kCodes)::Signed;
  Signed low = decltype(kCodes)::kMax, high = decltype(kCodes)::kMin;  // keys
  Signed nan = 0, inf = 0, zero = 0;
};

// `count` is at most kMax of the type: the counters hold it.
template <auto kCodes>
Counted<kCodes> count_run(const std::byte* at, size_t count) {
  using Type = decltype(kCodes);
  using Bits = typename Type::Bits;
  using Signed = typename Type::Signed;
  constexpr bool kMagnitude = kCodes.order == Order::sign_and_magnitude;
  // Not members: GCC 12 makes twice as fast code of locals.
  Signed lowest = Type::kMax, highest = Type::kMin, nans = 0, infs = 0, zeros = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto bits = load<Bits>(at + i * sizeof(Bits));
    const Signed key = kCodes.key(bits);
    const auto magnitude =
        static_cast<Signed>(kMagnitude ? static_cast<Signed>(bits & static_cast<Bits>(Type::kMax)) : key);
    auto nan = mask<Signed>(magnitude > kCodes.last);
    if constexpr (kCodes.minus_zero_is_nan) nan = mask<Signed>(static_cast<Signed>(bits) == Type::kMin);
    nans = static_cast<Signed>(nans - nan);
    if constexpr (kCodes.infinity != 0) infs = static_cast<Signed>(infs - mask<Signed>(magnitude == kCodes.infinity));
    if constexpr (kCodes.has_zero) {
      const bool zero = kMagnitude && !kCodes.minus_zero_is_nan ? magnitude == 0 : bits == 0;
      zeros = static_cast<Signed>(zeros - mask<Signed>(zero));
    }
    // A NaN is above all when the lowest is looked for, and below when the highest is.
    const auto low = static_cast<Signed>((key & ~nan) | (Type::kMax & nan));
    const auto high = static_cast<Signed>((key & ~nan) | (Type::kMin & nan));
    lowest = low < lowest ? low : lowest;
    highest = high > highest ? high : highest;
  }
  return {.low = lowest, .high = highest, .nan = nans, .inf = infs, .zero = zeros};
}

template <auto kCodes>
uint64_t count_infinite(std::span<const std::byte> elements) {
  if constexpr (kCodes.infinity == 0) return 0;
  using Type = decltype(kCodes);
  using Bits = typename Type::Bits;
  typename Type::Signed infinite = 0;
  for (size_t i = 0; i < elements.size(); i += sizeof(Bits)) {
    const auto magnitude =
        static_cast<typename Type::Signed>(load<Bits>(elements.data() + i) & static_cast<Bits>(Type::kMax));
    infinite = static_cast<typename Type::Signed>(infinite - mask<typename Type::Signed>(magnitude == kCodes.infinity));
  }
  return static_cast<uint64_t>(infinite);
}

// Elements that are looked at in one go: what they are turned into on the way stays in the first cache.
constexpr size_t kBlock = 1024;

template <auto kCodes>
constexpr size_t kRun = std::min<uint64_t>(kBlock, static_cast<uint64_t>(decltype(kCodes)::kMax));

template <class From, class To>
void turn_each(const std::byte* __restrict source, std::byte* __restrict target, size_t count, auto turn) {
  for (size_t i = 0; i < count; ++i)
    store<To>(target + i * sizeof(To), turn(load<From>(source + i * sizeof(From))));
}

void floats_to_halves(const std::byte* source, std::byte* target, size_t count) {
#if defined(__x86_64__)
  static const bool has_f16c = __builtin_cpu_supports("avx") != 0 && __builtin_cpu_supports("f16c") != 0;
  if (has_f16c) {
    const size_t done = floats_to_halves_f16c(source, target, count);
    source += done * sizeof(float);
    target += done * sizeof(uint16_t);
    count -= done;
  }
#endif
  turn_each<float, uint16_t>(source, target, count, float_to_half);
}

// Floating-point elements as float32.
void to_float(DType from, const std::byte* source, std::byte* target, size_t count) {
  switch (from) {
    case DType::float64:
      return turn_each<double, float>(source, target, count, [](double v) { return static_cast<float>(v); });
    case DType::float32: std::memcpy(target, source, count * sizeof(float)); return;
    case DType::float16: return turn_each<uint16_t, float>(source, target, count, half_to_float);
    case DType::bfloat16:
      return turn_each<uint16_t, float>(source, target, count,
                                        [](uint16_t v) { return std::bit_cast<float>(uint32_t{v} << 16); });
    default:
      return turn_each<uint8_t, float>(source, target, count,
                                       [table = table_of(from).data()](uint8_t code) { return table[code]; });
  }
}

void from_float(const std::byte* source, DType to, std::byte* target, size_t count) {
  switch (to) {
    case DType::float64: return turn_each<float, double>(source, target, count, [](float v) { return double{v}; });
    case DType::float16: return floats_to_halves(source, target, count);
    case DType::bfloat16: return turn_each<float, uint16_t>(source, target, count, float_to_bfloat);
    default: std::memcpy(target, source, count * sizeof(float)); return;
  }
}

uint64_t infinite_elements(DType dtype, std::span<const std::byte> elements) {
  uint64_t infinite = 0;
  with_codes(dtype, [&](auto codes) {
    constexpr size_t kBytes = kRun<codes()> * sizeof(typename decltype(codes())::Bits);
    for (; !elements.empty(); elements = elements.subspan(std::min(kBytes, elements.size())))
      infinite += count_infinite<codes()>(elements.first(std::min(kBytes, elements.size())));
  });
  return infinite;
}

DType part_of(DType dtype) {
  switch (dtype) {
    case DType::complex128: return DType::float64;
    case DType::complex64: return DType::float32;
    case DType::complex32: return DType::float16;
    case DType::bcomplex32: return DType::bfloat16;
    default: return dtype;
  }
}

template <auto kCodes>
double value_of(DType dtype, typename decltype(kCodes)::Signed key) {
  const typename decltype(kCodes)::Bits bits = kCodes.bits(key);
  if constexpr (kCodes.order == Order::signed_integer) return static_cast<double>(key);
  if (!is_float_source(part_of(dtype))) return static_cast<double>(bits);
  std::array<std::byte, sizeof bits> code = {};
  std::array<std::byte, sizeof(double)> value = {};
  store(code.data(), bits);
  (void)convert_elements(part_of(dtype), code, DType::float64, value);
  return load<double>(value.data()) + 0.0;  // no -0
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
  if (from == to) {
    std::ranges::copy(source, target.begin());
    return 0;
  }
  const size_t source_width = stats_element_bytes(from);
  const size_t target_width = stats_element_bytes(to);
  uint64_t were = 0, are = 0;  // infinite; none becomes finite
  std::array<std::byte, kBlock * sizeof(float)> floats;
  for (size_t count = source.size() / source_width, done = 0; done < count; done += kBlock) {
    const size_t block = std::min(kBlock, count - done);
    const std::span<const std::byte> in = source.subspan(done * source_width, block * source_width);
    const std::span<std::byte> out = target.subspan(done * target_width, block * target_width);
    to_float(from, in.data(), floats.data(), block);
    from_float(floats.data(), to, out.data(), block);
    were += infinite_elements(from, in);
    are += infinite_elements(to, out);
  }
  return are - were;
}

uint32_t stats_element_bytes(DType dtype) noexcept {
  uint32_t bytes = 0;
  with_codes(dtype, [&](auto codes) { bytes = sizeof(typename decltype(codes())::Bits); });
  return bytes;
}

void add_stats(DType dtype, std::span<const std::byte> elements, ElementStats& stats) noexcept {
  with_codes(dtype, [&](auto codes) {
    constexpr auto kCodes = codes();
    using Bits = typename decltype(kCodes)::Bits;
    const size_t count = elements.size() / sizeof(Bits);
    Counted<kCodes> all;
    for (size_t done = 0; done < count; done += kRun<kCodes>) {
      const auto run = count_run<kCodes>(elements.data() + done * sizeof(Bits), std::min(kRun<kCodes>, count - done));
      stats.nan += static_cast<uint64_t>(run.nan);
      stats.inf += static_cast<uint64_t>(run.inf);
      stats.zero += static_cast<uint64_t>(run.zero);
      all.low = std::min(all.low, run.low);
      all.high = std::max(all.high, run.high);
    }
    stats.elements += count;
    if (all.low > all.high) return;  // nothing, or nothing but NaN
    stats.min = std::min(stats.min, value_of<kCodes>(dtype, all.low));
    stats.max = std::max(stats.max, value_of<kCodes>(dtype, all.high));
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
