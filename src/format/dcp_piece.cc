// SPDX-License-Identifier: Apache-2.0
// The calls by which torch.save writes a tensor, followed to its storage.
// Any thread: pure functions.
// Owns nothing.
#include "format/dcp_piece.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/torch_legacy.h"

namespace headrace::format {
namespace {

std::string_view name_of(const Pickle& pickle, PickleNode node) {
  const std::optional<uint32_t> global = pickle.global(node);
  return global ? std::string_view(pickle.globals()[*global].qualified_name) : std::string_view();
}

std::string_view without_torch(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  return name;
}

// Of a tuple, or of torch.Size of one.
std::optional<std::vector<uint64_t>> numbers(const Pickle& pickle, PickleNode node) {
  constexpr size_t kDimensionsMax = 64;  // as torch
  if (const std::optional<PickleCall> call = pickle.call(node)) {
    const std::span<const PickleNode> arguments = pickle.tuple_items(call->arguments);
    if (name_of(pickle, call->callee) != "torch.Size" || arguments.size() != 1) return std::nullopt;
    node = arguments[0];
  }
  if (pickle.kind(node) != PickleKind::tuple || pickle.tuple_items(node).size() > kDimensionsMax) return std::nullopt;
  std::vector<uint64_t> all;
  for (const PickleNode item : pickle.tuple_items(node)) {
    const std::optional<int64_t> number = pickle.integer(item);
    if (!number || *number < 0) return std::nullopt;
    all.push_back(static_cast<uint64_t>(*number));
  }
  return all;
}

// Nothing for UntypedStorage, which counts bytes.
std::optional<DType> storage_dtype(const Pickle& pickle, const PickleStorage& storage) {
  std::string_view type = name_of(pickle, storage.type);
  type.remove_prefix(type.rfind('.') == std::string_view::npos ? 0 : type.rfind('.') + 1);
  return dtype_from_torch_storage(type);
}

uint64_t storage_bytes(const PickleStorage& storage, std::optional<DType> typed) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(storage.numel, typed ? dtype_facts(*typed).torch_bytes : 1, &bytes))
    return std::numeric_limits<uint64_t>::max();
  return bytes;
}

// False where the arguments are not those that torch writes.
bool read_tensor(const Pickle& pickle, std::string_view maker, std::span<const PickleNode> arguments,
                 DcpContent& content) {
  const bool v3 = maker == "torch._utils._rebuild_tensor_v3", quantized = maker == "torch._utils._rebuild_qtensor";
  if (arguments.size() < (v3 ? 7 : 4)) return false;
  const std::optional<PickleStorage> storage = pickle.storage(arguments[0]);
  const std::optional<int64_t> first = pickle.integer(arguments[1]);
  std::optional<std::vector<uint64_t>> shape = numbers(pickle, arguments[2]), strides = numbers(pickle, arguments[3]);
  if (!storage || !first || *first < 0 || !shape || !strides || shape->size() != strides->size()) return false;
  const std::optional<DType> typed = storage_dtype(pickle, *storage);
  content.dtype_name = v3 ? without_torch(name_of(pickle, arguments[6])) : typed ? dtype_facts(*typed).name : "uint8";
  content.storage_bytes = storage_bytes(*storage, typed);
  content.storage_key = storage->key;
  content.first_element = static_cast<uint64_t>(*first);
  content.shape = *std::move(shape);
  content.strides = *std::move(strides);
  const size_t facts = v3 ? 7 : 6;
  if (!quantized && arguments.size() > facts)
    for (const PickleEntry& entry : pickle.entries(arguments[facts]))
      content.turned |= pickle.boolean(entry.value).value_or(false);
  return true;
}

// Through parameters and subclasses to the call that views a storage.
void find_tensor(const Pickle& pickle, DcpContent& content) {
  constexpr int kWrappersMax = 8;
  std::optional<PickleCall> call = pickle.call(pickle.root());
  for (int i = 0; i < kWrappersMax && call; ++i) {
    const std::string_view maker = name_of(pickle, call->callee);
    const std::span<const PickleNode> arguments = pickle.tuple_items(call->arguments);
    if (maker == "torch._utils._rebuild_parameter" || maker == "torch._utils._rebuild_parameter_with_state") {
      content.kind = DcpContent::Kind::other_tensor;
      call = arguments.empty() ? std::nullopt : pickle.call(arguments[0]);
    } else if (maker == "torch._tensor._rebuild_from_type_v2" && arguments.size() >= 3) {
      content.kind = DcpContent::Kind::other_tensor;
      call = PickleCall{.callee = arguments[0], .arguments = arguments[2]};
    } else if (maker == "torch._utils._rebuild_tensor_v2" || maker == "torch._utils._rebuild_tensor" ||
               maker == "torch._utils._rebuild_tensor_v3" || maker == "torch._utils._rebuild_qtensor") {
      content.kind =
          read_tensor(pickle, maker, arguments, content) ? DcpContent::Kind::tensor : DcpContent::Kind::other_tensor;
      return;
    } else {
      const PickleRole role = pickle.role(call->callee);
      if (role == PickleRole::tensor_function || role == PickleRole::tensor_class || role == PickleRole::parameter)
        content.kind = DcpContent::Kind::other_tensor;
      else if (role <= PickleRole::never && content.kind == DcpContent::Kind::object)
        content.kind = DcpContent::Kind::unknown;
      return;
    }
  }
}

// A view that ends behind its storage is one that torch refuses to make.
std::string compare_with_storage(const DcpContent& content, std::optional<DType> dtype) {
  const uint64_t element_bytes = dtype ? dtype_facts(*dtype).torch_bytes : 0;
  const bool packed = dtype == DType::quint4x2 || dtype == DType::quint2x4;  // their shape counts what is in the bytes
  if (element_bytes == 0 || packed || std::ranges::find(content.shape, 0U) != content.shape.end()) return {};
  uint64_t last = content.first_element;
  bool overflow = false;
  for (size_t d = 0; d < content.shape.size(); ++d) {
    uint64_t reach = 0;
    overflow |= __builtin_mul_overflow(content.shape[d] - 1, content.strides[d], &reach) ||
                __builtin_add_overflow(last, reach, &last);
  }
  const uint64_t elements = content.storage_bytes / element_bytes;
  if (!overflow && last < elements) return {};
  return fmt::format("its archive holds a storage of {} elements, and its tensor [{}] reaches beyond", elements,
                     fmt::join(content.shape, ", "));
}

}  // namespace

DcpContent describe_dcp_piece(const Pickle& pickle) {
  DcpContent content;
  for (const PickleGlobal& global : pickle.globals())
    if (!global.known()) content.foreign_globals.push_back(global.qualified_name);
  find_tensor(pickle, content);
  return content;
}

std::string compare_dcp_piece(const DcpContent& content, const DcpTensor* tensor, const DcpPiece* piece) {
  using Kind = DcpContent::Kind;
  if (content.kind == Kind::unknown) return {};
  if (tensor == nullptr)
    return content.kind == Kind::object ? "" : "its archive holds a tensor, and the metadata call it an object";
  if (content.kind == Kind::object) return "its archive holds an object, and the metadata call it a tensor";
  if (content.kind != Kind::tensor) return {};
  if (content.dtype_name == tensor->dtype_name && content.shape == piece->shape)
    return compare_with_storage(content, tensor->dtype);
  return fmt::format("its archive holds {} [{}], and the metadata say {} [{}]", content.dtype_name,
                     fmt::join(content.shape, ", "), tensor->dtype_name, fmt::join(piece->shape, ", "));
}

std::optional<uint64_t> legacy_storages_bytes(const Pickle& object, const Pickle& keys) {
  if (keys.kind(keys.root()) != PickleKind::list) return std::nullopt;
  std::map<std::string_view, uint64_t> storages;
  for (PickleNode node = 0; node < object.node_count(); ++node)
    if (const std::optional<PickleStorage> storage = object.storage(node))
      storages.emplace(storage->key, storage_bytes(*storage, storage_dtype(object, *storage)));
  uint64_t all = 0;
  for (const PickleNode key : keys.appended(keys.root())) {
    const std::optional<std::string_view> text = keys.text(key);
    const auto found = text ? storages.find(*text) : storages.end();
    if (found == storages.end()) return std::nullopt;
    if (__builtin_add_overflow(all, kLegacyCountBytes, &all) || __builtin_add_overflow(all, found->second, &all))
      return std::numeric_limits<uint64_t>::max();
  }
  return all;
}

}  // namespace headrace::format
