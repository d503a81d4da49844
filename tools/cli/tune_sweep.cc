// SPDX-License-Identifier: Apache-2.0
// Sweep files: which values are to be tried, under ds_nvme_tune's names or ours.
// One thread.
// Owns nothing.
#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "console.h"
#include "json_file.h"
#include "nearest.h"
#include "tune_options.h"
#include "units.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::json;
using Outcome = std::expected<void, std::string>;

std::unexpected<std::string> wrong(std::string why) { return std::unexpected(std::move(why)); }

std::string shown(const Json& value) {
  constexpr size_t kShownMax = 40;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return text;
}

Outcome add_size(std::vector<uint64_t>& list, const Json& value) {
  if (value.is_number_unsigned()) {
    list.push_back(value.get<uint64_t>());
    return {};
  }
  if (!value.is_string()) return wrong(fmt::format("{} is no size, such as 1048576 or \"1M\"", shown(value)));
  const std::expected<uint64_t, std::string> bytes = parse_bytes(value.get<std::string>());
  if (!bytes) return wrong(bytes.error());
  list.push_back(*bytes);
  return {};
}

Outcome add_count(std::vector<uint32_t>& list, const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<uint32_t>::max())
    return wrong(fmt::format("{} is no whole number from 0 to {}", shown(value), std::numeric_limits<uint32_t>::max()));
  list.push_back(value.get<uint32_t>());
  return {};
}

template <typename T>
Outcome add_flag(std::vector<T>& list, const Json& value, T if_true, T if_false) {
  if (!value.is_boolean()) return wrong(fmt::format("{} is neither true nor false", shown(value)));
  list.push_back(value.get<bool>() ? if_true : if_false);
  return {};
}

Outcome add_engine(std::vector<EngineKind>& list, const Json& value) {
  const std::string word = value.is_string() ? value.get<std::string>() : std::string();
  const std::optional<EngineKind> kind = word == "aio_handle" ? EngineKind::automatic : engine_from_name(word);
  if (!kind || *kind == EngineKind::null)
    return wrong(fmt::format("{} is none of \"auto\", \"uring\", \"aio\", \"posix\"", shown(value)));
  list.push_back(*kind);
  return {};
}

Outcome add_registered(std::vector<Ladder>& list, const Json& value) {
  if (value == "auto" || value == true) {
    list.push_back(Ladder::automatic);
  } else if (value == "never" || value == false) {
    list.push_back(Ladder::never);
  } else if (value == "required") {
    list.push_back(Ladder::required);
  } else {
    return wrong(fmt::format("{} is none of \"auto\", \"never\", \"required\"", shown(value)));
  }
  return {};
}

struct Key {
  std::string_view name;
  Outcome (*add)(TuneSpace&, const Json&);
};

Outcome add_block(TuneSpace& space, const Json& value) { return add_size(space.block_bytes, value); }
Outcome add_depth(TuneSpace& space, const Json& value) { return add_count(space.queue_depths, value); }
Outcome add_workers(TuneSpace& space, const Json& value) { return add_count(space.workers, value); }
Outcome add_sequential(TuneSpace& space, const Json& value) {
  return add_flag(space.orders, value, RequestOrder::in_batches, RequestOrder::overlapping);
}
Outcome add_overlap(TuneSpace& space, const Json& value) {
  return add_flag(space.orders, value, RequestOrder::overlapping, RequestOrder::in_batches);
}
Outcome add_single(TuneSpace& space, const Json& value) {
  return add_flag(space.requests, value, RequestSize::block, RequestSize::file);
}

constexpr std::array<Key, 11> kKeys = {{
    {"block_size", add_block},
    {"block_bytes", add_block},
    {"queue_depth", add_depth},
    {"io_parallel", add_workers},
    {"workers", add_workers},
    {"intra_op_parallelism", add_workers},
    {"sequential_requests", add_sequential},
    {"overlap_events", add_overlap},
    {"single_submit", add_single},
    {"engine", [](TuneSpace& space, const Json& value) { return add_engine(space.engines, value); }},
    {"registered", [](TuneSpace& space, const Json& value) { return add_registered(space.registered, value); }},
}};

std::string unknown(const std::string& name) {
  std::vector<std::string> names;
  for (const Key& key : kKeys)
    names.emplace_back(key.name);
  const std::optional<std::string_view> meant = nearest(name, names);
  return fmt::format("'{}' is none of {}{}", printable(name), fmt::join(names, ", "),
                     meant ? fmt::format("; did you mean '{}'?", *meant) : std::string());
}

}  // namespace

std::expected<TuneSpace, std::string> parse_sweep(const std::string& text) {
  std::set<std::string> names;
  std::string twice;
  const std::expected<Json, std::string> document = parse_json<Json>(text, [&](int depth, const std::string& key) {
    if (depth == 1 && !names.insert(key).second) twice = key;
  });
  if (!document) return wrong(document.error());
  if (!document->is_object()) return wrong("it is no JSON object of option name to list of values");
  if (!twice.empty()) return wrong(fmt::format("'{}' stands there twice; put its values into one list", twice));
  TuneSpace space;
  for (const auto& [name, values] : document->items()) {
    const auto key = std::ranges::find(kKeys, name, &Key::name);
    if (key == kKeys.end()) return wrong(unknown(name));
    if (!values.is_array() || values.empty())
      return wrong(fmt::format("'{}' is {}, and has to be a list of values", name, shown(values)));
    for (const Json& value : values)
      if (const Outcome added = key->add(space, value); !added)
        return wrong(fmt::format("'{}': {}", name, added.error()));
  }
  return space;
}

}  // namespace headrace::cli
