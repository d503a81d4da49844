// SPDX-License-Identifier: Apache-2.0
// The table of element types. Names: torch.dtype, the classes of torch.storage, and the README of safetensors 0.8.
// Any thread.
// Owns nothing.
#include <array>

#include <headrace/tensor.h>

namespace headrace {
namespace {

// In the order of DType.
constexpr std::array<DTypeFacts, kDTypeCount> kTable = {{
    {"bool", "BOOL", "BoolStorage", 8, 1},
    {"uint8", "U8", "ByteStorage", 8, 1},
    {"int8", "I8", "CharStorage", 8, 1},
    {"uint16", "U16", "", 16, 2},
    {"int16", "I16", "ShortStorage", 16, 2},
    {"uint32", "U32", "", 32, 4},
    {"int32", "I32", "IntStorage", 32, 4},
    {"uint64", "U64", "", 64, 8},
    {"int64", "I64", "LongStorage", 64, 8},
    {"float16", "F16", "HalfStorage", 16, 2},
    {"bfloat16", "BF16", "BFloat16Storage", 16, 2},
    {"float32", "F32", "FloatStorage", 32, 4},
    {"float64", "F64", "DoubleStorage", 64, 8},
    {"complex32", "", "", 32, 4},
    {"bcomplex32", "", "", 32, 4},
    {"complex64", "C64", "ComplexFloatStorage", 64, 8},
    {"complex128", "", "ComplexDoubleStorage", 128, 16},
    {"float8_e4m3fn", "F8_E4M3", "", 8, 1},
    {"float8_e5m2", "F8_E5M2", "", 8, 1},
    {"float8_e4m3fnuz", "F8_E4M3FNUZ", "", 8, 1},
    {"float8_e5m2fnuz", "F8_E5M2FNUZ", "", 8, 1},
    {"float8_e8m0fnu", "F8_E8M0", "", 8, 1},
    {"float4_e2m1fn_x2", "F4", "", 4, 1},
    {"float6_e2m3fn", "F6_E2M3", "", 6, 0},
    {"float6_e3m2fn", "F6_E3M2", "", 6, 0},
    {"quint8", "", "QUInt8Storage", 8, 1},
    {"qint8", "", "QInt8Storage", 8, 1},
    {"qint32", "", "QInt32Storage", 32, 4},
    {"quint4x2", "", "QUInt4x2Storage", 8, 1},
    {"quint2x4", "", "QUInt2x4Storage", 8, 1},
}};
static_assert(!kTable.back().name.empty());

std::optional<DType> find(std::string_view wanted, std::string_view DTypeFacts::* field) noexcept {
  if (wanted.empty()) return std::nullopt;
  for (uint32_t i = 0; i < kDTypeCount; ++i)
    if (kTable[i].*field == wanted) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace

const DTypeFacts& dtype_facts(DType dtype) noexcept { return kTable[static_cast<uint32_t>(dtype)]; }
std::optional<DType> dtype_from_name(std::string_view name) noexcept { return find(name, &DTypeFacts::name); }
std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept {
  return find(name, &DTypeFacts::safetensors);
}
std::optional<DType> dtype_from_torch_storage(std::string_view name) noexcept {
  return find(name, &DTypeFacts::torch_storage);
}

}  // namespace headrace
