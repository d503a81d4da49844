// SPDX-License-Identifier: Apache-2.0
// Key by key, in the order in which people read them; docs/schema says what each means.
// Any thread; pure.
// Owns nothing.
#include "diagnose/bench_json.h"

#include <string>
#include <utility>

namespace headrace::diagnose {
namespace {

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

const char* name_of(Ladder ladder) {
  switch (ladder) {
    case Ladder::automatic: return "auto";
    case Ladder::never: return "never";
    case Ladder::required: return "required";
  }
  return "";
}

const char* name_of(CopyMode copy) {
  switch (copy) {
    case CopyMode::automatic: return "auto";
    case CopyMode::always: return "always";
    case CopyMode::never: return "never";
  }
  return "";
}

// As asked for. Zero is what the library chooses by itself: `resolved` tells what that was.
Json settings_of(const IoSettings& settings) {
  const auto chosen = [](uint64_t value) { return value == 0 ? Json("auto") : Json(value); };
  return {{"engine", engine_name(settings.engine)},
          {"block_bytes", chosen(settings.block_bytes)},
          {"queue_depth", chosen(settings.queue_depth)},
          {"workers", chosen(settings.workers)},
          {"direct", name_of(settings.direct)},
          {"registered", name_of(settings.registered)},
          {"copy", name_of(settings.copy)},
          {"pages", page_kind_name(settings.pages)},
          {"request", settings.request == RequestSize::file ? "file" : "block"},
          {"order", settings.order == RequestOrder::overlapping ? "overlapping" : "in_batches"},
          {"bytes_per_file", settings.bytes},
          {"files_at_once", settings.files_at_once},
          {"drop_page_cache", settings.cache == CacheBefore::drop},
          {"durable", settings.direction == IoDirection::write && settings.durability == Durability::data},
          {"validate", settings.validate == Validate::all_bytes}};
}

Json resolved_of(const HandleFacts& facts) {
  return {{"engine", engine_name(facts.engine)},     {"engine_detail", facts.engine_detail},
          {"block_bytes", facts.block_bytes},        {"staged_block_bytes", facts.staged_block_bytes},
          {"queue_depth", facts.queue_depth},        {"workers", facts.workers},
          {"staging_bytes_max", facts.staging_bytes}};
}

Json samples_of(const std::vector<IoSample>& samples) {
  Json list = Json::array();
  for (const IoSample& sample : samples) {
    list.push_back({{"seconds", sample.seconds},
                    {"transfer_seconds", sample.transfer_seconds},
                    {"whole_seconds", sample.whole_seconds},
                    {"cpu_seconds", sample.cpu_seconds},
                    {"bytes", sample.bytes},
                    {"device_bytes", or_null(sample.device_bytes)},
                    {"resident_bytes", or_null(sample.resident_bytes)}});
  }
  return list;
}

Json totals_of(const DirectionStats& totals) {
  return {{"requests", totals.requests},
          {"bytes", totals.bytes},
          {"blocks", totals.blocks},
          {"direct_bytes", totals.direct_bytes},
          {"buffered_bytes", totals.buffered_bytes},
          {"staged_bytes", totals.staged_bytes},
          {"registered_bytes", totals.registered_bytes}};
}

Json latency_of(const DirectionStats& totals) {
  return {{"p50", totals.latency_ns[0]},
          {"p90", totals.latency_ns[1]},
          {"p99", totals.latency_ns[2]},
          {"p99_9", totals.latency_ns[3]},
          {"max", totals.latency_ns[4]}};
}

}  // namespace

Json places_json(const std::vector<BenchmarkPlace>& places) {
  Json list = Json::array();
  for (const BenchmarkPlace& place : places) {
    list.push_back({{"path", place.path},
                    {"file_system", or_null(place.file_system)},
                    {"mount_options", or_null(place.mount_options)},
                    {"device", or_null(place.device)},
                    {"device_model", or_null(place.device_model)}});
  }
  return list;
}

Json machine_json(const BenchmarkMachine& machine) {
  return {{"kernel", machine.kernel},
          {"architecture", machine.architecture},
          {"processor", or_null(machine.processor)},
          {"processors", machine.processors},
          {"memory_bytes", machine.memory_bytes}};
}

Json json_of(const Spread& spread) {
  return {{"count", spread.count}, {"median", spread.median}, {"min", spread.min},  {"max", spread.max},
          {"low", spread.low},     {"high", spread.high},     {"sure", spread.sure}};
}

Json json_of(const IoResult& result) {
  return {{"direction", direction_name(result.settings.direction)},
          {"gb_per_s", json_of(result.gb_per_s)},
          {"cpu_seconds_per_gb", json_of(result.cpu_seconds_per_gb)},
          {"latency_ns", latency_of(result.totals)},
          {"cold", or_null(result.cold)},
          {"why_not_faster", or_null(result.why)},
          {"settings", settings_of(result.settings)},
          {"resolved", resolved_of(result.handle)},
          {"totals", totals_of(result.totals)},
          {"validated_bytes", result.validated_bytes},
          {"memory",
           {{"bytes", result.memory_bytes},
            {"huge_bytes", result.memory_huge_bytes},
            {"pages", page_kind_name(result.pages)}}},
          {"samples", samples_of(result.samples)},
          {"existing_files", result.existing_files},
          {"places", places_json(result.places)},
          {"machine", machine_json(result.machine)}};
}

Json json_of(const Error& error) {
  return {{"code", error_code_name(error.code)},
          {"errno", error.errno_value == 0 ? Json(nullptr) : Json(errno_name(error.errno_value))},
          {"message", error.message()}};
}

std::string dump(const Json& value) {
  constexpr int kIndent = 2;
  return value.dump(kIndent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace headrace::diagnose

namespace headrace {

using diagnose::Json;

std::string to_json(std::span<const IoResult> results) {
  Json list = Json::array();
  for (const IoResult& result : results)
    list.push_back(diagnose::json_of(result));
  return diagnose::dump({{"schema", "headrace.bench-io"}, {"version", 1}, {"results", std::move(list)}});
}

std::string to_json(std::span<const EngineRow> rows) {
  Json list = Json::array();
  for (const EngineRow& row : rows) {
    list.push_back({{"engine", engine_name(row.engine)},
                    {"direction", direction_name(row.direction)},
                    {"result", row.result ? diagnose::json_of(*row.result) : Json(nullptr)},
                    {"error", row.result ? Json(nullptr) : diagnose::json_of(row.result.error())}});
  }
  return diagnose::dump({{"schema", "headrace.bench-engines"}, {"version", 1}, {"rows", std::move(list)}});
}

}  // namespace headrace
