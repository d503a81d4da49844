// SPDX-License-Identifier: Apache-2.0
// The table of names. Source: what torch._weights_only_unpickler of torch 2.13 (CPU) lists; all of its names were tried.
// Any thread.
// Owns nothing.
#include "format/pickle_globals.h"

#include <algorithm>
#include <array>
#include <span>

namespace headrace::format {
namespace {

struct Whole {
  std::string_view qualified_name;
  PickleRole role;
};
constexpr auto kWhole = std::to_array<Whole>({
    {"_codecs.encode", PickleRole::function},
    {"builtins.bytearray", PickleRole::plain_class},
    {"builtins.complex", PickleRole::plain_class},
    {"builtins.set", PickleRole::plain_class},
    {"collections.Counter", PickleRole::counter},
    {"collections.OrderedDict", PickleRole::ordered_dict},
    {"torch.Size", PickleRole::plain_class},
    {"torch.Tensor", PickleRole::tensor_class},
    {"torch.device", PickleRole::plain_class},
    {"torch._tensor._rebuild_from_type_v2", PickleRole::tensor_function},
    {"torch.nn.parameter.Parameter", PickleRole::parameter},
    {"torch.serialization._get_layout", PickleRole::function},
    {"torch.storage.TypedStorage", PickleRole::plain_class},
    {"torch.storage.UntypedStorage", PickleRole::untyped_storage},
});

constexpr auto kRebuild = std::to_array<std::string_view>({
    "device_tensor_from_cpu_tensor",
    "device_tensor_from_numpy",
    "meta_tensor_no_storage",
    "nested_tensor",
    "parameter",
    "parameter_with_state",
    "qtensor",
    "sparse_tensor",
    "tensor",
    "tensor_v2",
    "tensor_v3",
    "wrapper_subclass",
});
constexpr auto kConstants = std::to_array<std::string_view>({
    // Element types.
    "bcomplex32",
    "bfloat16",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bool",
    "complex128",
    "complex32",
    "complex64",
    "float16",
    "float32",
    "float4_e2m1fn_x2",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int1",
    "int16",
    "int2",
    "int3",
    "int32",
    "int4",
    "int5",
    "int6",
    "int64",
    "int7",
    "int8",
    "qint32",
    "qint8",
    "quint2x4",
    "quint4x2",
    "quint8",
    "uint1",
    "uint16",
    "uint2",
    "uint3",
    "uint32",
    "uint4",
    "uint5",
    "uint6",
    "uint64",
    "uint7",
    "uint8",
    // Schemes of quantisation.
    "per_channel_affine",
    "per_channel_affine_float_qparams",
    "per_channel_symmetric",
    "per_tensor_affine",
    "per_tensor_symmetric",
});
// Which modules have a class for an element type: its storage, and (dense or sparse) its tensor.
struct Element {
  std::string_view name;
  bool cuda_storage;
  bool tensor;
  bool sparse_tensor;
};
constexpr auto kElements = std::to_array<Element>({
    {"BFloat16", true, true, true},
    {"Bool", true, true, false},
    {"Byte", true, true, true},
    {"Char", true, true, true},
    {"ComplexDouble", true, false, false},
    {"ComplexFloat", true, false, false},
    {"Double", true, true, true},
    {"Float", true, true, true},
    {"Half", true, true, true},
    {"Int", true, true, true},
    {"Long", true, true, true},
    {"QInt32", false, false, false},
    {"QInt8", false, false, false},
    {"QUInt2x4", false, false, false},
    {"QUInt4x2", false, false, false},
    {"QUInt8", false, false, false},
    {"Short", true, true, true},
});

bool holds(std::span<const std::string_view> names, std::string_view name) noexcept {
  return std::ranges::find(names, name) != names.end();
}

bool take_prefix(std::string_view& text, std::string_view prefix) noexcept {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_suffix(std::string_view& text, std::string_view suffix) noexcept {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// "FloatStorage", "cuda.sparse.HalfTensor" and so on: `name` without "torch.".
PickleRole element_class_role(std::string_view name) noexcept {
  const bool cuda = take_prefix(name, "cuda.");
  const bool sparse = take_prefix(name, "sparse.");
  const bool storage = take_suffix(name, "Storage");
  if (!storage && !take_suffix(name, "Tensor")) return PickleRole::unknown;
  const auto* element = std::ranges::find(kElements, name, &Element::name);
  if (element == kElements.end()) return PickleRole::unknown;
  if (storage) {
    return !sparse && (!cuda || element->cuda_storage) ? PickleRole::storage_class : PickleRole::unknown;
  }
  return (sparse ? element->sparse_tensor : element->tensor) ? PickleRole::tensor_class : PickleRole::unknown;
}

struct Renamed {
  GlobalName written;
  GlobalName means;
};
constexpr auto kNames = std::to_array<Renamed>({
    {{"UserDict", "IterableUserDict"}, {"collections", "UserDict"}},
    {{"UserDict", "UserDict"}, {"collections", "UserDict"}},
    {{"UserList", "UserList"}, {"collections", "UserList"}},
    {{"UserString", "UserString"}, {"collections", "UserString"}},
    {{"__builtin__", "basestring"}, {"builtins", "str"}},
    {{"__builtin__", "intern"}, {"sys", "intern"}},
    {{"__builtin__", "long"}, {"builtins", "int"}},
    {{"__builtin__", "reduce"}, {"functools", "reduce"}},
    {{"__builtin__", "unichr"}, {"builtins", "chr"}},
    {{"__builtin__", "unicode"}, {"builtins", "str"}},
    {{"__builtin__", "xrange"}, {"builtins", "range"}},
    {{"exceptions", "StandardError"}, {"builtins", "Exception"}},
    {{"itertools", "ifilter"}, {"builtins", "filter"}},
    {{"itertools", "ifilterfalse"}, {"itertools", "filterfalse"}},
    {{"itertools", "imap"}, {"builtins", "map"}},
    {{"itertools", "izip"}, {"builtins", "zip"}},
    {{"itertools", "izip_longest"}, {"itertools", "zip_longest"}},
});
constexpr auto kModules = std::to_array<GlobalName>({
    // Python 2's module, Python 3's.
    {"Queue", "queue"},
    {"StringIO", "io"},
    {"UserDict", "collections"},
    {"UserList", "collections"},
    {"UserString", "collections"},
    {"__builtin__", "builtins"},
    {"_abcoll", "collections.abc"},
    {"cStringIO", "io"},
    {"copy_reg", "copyreg"},
    {"repr", "reprlib"},
    {"whichdb", "dbm"},
});
constexpr auto kNever = std::to_array<std::string_view>({"nt", "os", "posix", "sys"});

}  // namespace

GlobalName python3_name(GlobalName written) noexcept {
  for (const Renamed& known : kNames)
    if (known.written.module == written.module && known.written.name == written.name) return known.means;
  const auto* module = std::ranges::find(kModules, written.module, &GlobalName::module);
  if (module != kModules.end()) written.module = module->name;
  return written;
}

PickleRole global_role(std::string_view module, std::string_view qualified_name) noexcept {
  if (holds(kNever, module)) return PickleRole::never;
  const auto* whole = std::ranges::find(kWhole, qualified_name, &Whole::qualified_name);
  if (whole != kWhole.end()) return whole->role;
  if (!take_prefix(qualified_name, "torch.")) return PickleRole::unknown;
  if (take_prefix(qualified_name, "_utils._rebuild_")) {
    return holds(kRebuild, qualified_name) ? PickleRole::tensor_function : PickleRole::unknown;
  }
  if (holds(kConstants, qualified_name)) return PickleRole::constant;
  return element_class_role(qualified_name);
}

}  // namespace headrace::format
