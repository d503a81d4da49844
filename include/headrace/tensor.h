// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and what each file format calls them.
// Any thread: constants and pure functions.
// Owns nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <headrace/export.h>

namespace headrace {

// Every element type that a torch storage or a safetensors file can hold.
enum class DType : uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex32,
  bcomplex32,  // two bfloat16
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  float4_e2m1fn_x2,  // torch: one byte with two elements
  float6_e2m3fn,     // safetensors only
  float6_e3m2fn,     // safetensors only
  quint8,
  qint8,
  qint32,
  quint4x2,
  quint2x4,
};
inline constexpr uint32_t kDTypeCount = static_cast<uint32_t>(DType::quint2x4) + 1;

struct DTypeFacts {
  std::string_view name;           // torch's, without "torch."
  std::string_view safetensors;    // empty: safetensors has none
  std::string_view torch_storage;  // the class that torch pickles its storages as; empty: UntypedStorage
  uint32_t bits = 0;               // of one element as the format named last counts them: 4 and 6 in safetensors
  uint32_t torch_bytes = 0;        // of one element of a torch tensor; 0: torch has none
};

HEADRACE_EXPORT const DTypeFacts& dtype_facts(DType dtype) noexcept;
HEADRACE_EXPORT std::optional<DType> dtype_from_name(std::string_view name) noexcept;
HEADRACE_EXPORT std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept;
// "FloatStorage" and so on; not UntypedStorage, which has no type.
HEADRACE_EXPORT std::optional<DType> dtype_from_torch_storage(std::string_view name) noexcept;

}  // namespace headrace
