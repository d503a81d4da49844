// SPDX-License-Identifier: Apache-2.0
// The index as JSON, read with every surprise that JSON allows, and written.
// Any thread: pure functions; no exception leaves.
// Owns nothing.
#include "format/shard_index.h"

#include <exception>
#include <string_view>

#include <nlohmann/json.hpp>

#include "format/format_error.h"

namespace headrace::format {
namespace {

constexpr std::string_view kReading = "read index";

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

Result<ShardIndexText> parse(std::span<const std::byte> json) {
  const auto* first = reinterpret_cast<const char*>(json.data());
  const nlohmann::json index = nlohmann::json::parse(first, first + json.size(), nullptr, false);
  if (index.is_discarded()) return corrupt(kReading, 0, "this is no JSON");
  const auto names = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || names == index.end() || !names->is_object())
    return corrupt(kReading, 0, "it has no weight_map from names of tensors to names of files");
  ShardIndexText text;
  for (const auto& [tensor, file] : names->items()) {
    if (!file.is_string()) return corrupt(kReading, 0, fmt::format("{} stands for no file name", quote_name(tensor)));
    const auto& name = file.get_ref<const std::string&>();
    if (!is_plain_name(name))
      return corrupt(kReading, 0, fmt::format("it names {}, which is not a file beside it", quote_name(name)));
    text.files_by_tensor.emplace_back(tensor, name);
  }
  const auto metadata = index.find("metadata");
  if (metadata != index.end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    if (total != metadata->end() && total->is_number_unsigned()) text.total_bytes = total->get<uint64_t>();
  }
  return text;
}

}  // namespace

Result<ShardIndexText> parse_shard_index(std::span<const std::byte> json) noexcept {
  try {
    return parse(json);
  } catch (const std::bad_alloc&) {
    return no_memory(kReading);
  } catch (const std::exception& error) {
    return corrupt(kReading, 0, error.what());
  }
}

std::string write_shard_index(const ShardIndexText& index) {
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  // Each name is there once, and there may be millions.
  for (const auto& [tensor, file] : index.files_by_tensor)
    weight_map.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(tensor, file);
  nlohmann::ordered_json metadata = nlohmann::ordered_json::object();
  if (index.total_bytes) metadata["total_size"] = *index.total_bytes;
  const nlohmann::ordered_json json = {{"metadata", std::move(metadata)}, {"weight_map", std::move(weight_map)}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace headrace::format
