// SPDX-License-Identifier: Apache-2.0
// What verify and compare tell, as JSON: docs/schema/verify.json, docs/schema/verify-against.json.
// Any thread: pure functions.
// Owns nothing.
#include <cmath>

#include <headrace/verify.h>

#include "convert/json.h"

namespace headrace {
namespace {

using convert::Json;

// JSON has no infinities.
Json number(const std::optional<double>& value) {
  if (!value) return {};
  if (std::isinf(*value)) return *value < 0 ? "-Infinity" : "Infinity";
  return *value;
}

Json optional(const std::optional<uint64_t>& value) { return value ? Json(*value) : Json(); }

}  // namespace

std::string to_json(const Verification& verification) {
  Json json = convert::head("headrace.verify");
  json["path"] = verification.path;
  json["good"] = verification.good();
  Json files = Json::array();
  for (const VerifiedFile& file : verification.files)
    files.push_back({{"path", file.path},
                     {"format", file.format},
                     {"bytes", file.bytes},
                     {"summed_bytes", file.summed_bytes},
                     {"read_bytes", file.read_bytes}});
  json["files"] = std::move(files);
  Json stats = Json::array();
  for (const TensorStats& one : verification.stats)
    stats.push_back({{"name", one.name},
                     {"dtype", dtype_facts(one.dtype).name},
                     {"elements", one.elements},
                     {"nan", one.nan},
                     {"inf", one.inf},
                     {"zero", one.zero},
                     {"min", number(one.min)},
                     {"max", number(one.max)},
                     {"why_not", convert::text_or_null(one.why_not)}});
  json["stats"] = std::move(stats);
  json["problems"] = convert::problems(verification.problems);
  return convert::text(json);
}

std::string to_json(const Comparison& comparison) {
  Json json = convert::head("headrace.verify-against");
  json["path"] = comparison.path;
  json["other"] = comparison.other;
  json["equal"] = comparison.differences.empty();
  json["compared_tensors"] = comparison.compared_tensors;
  json["compared_bytes"] = comparison.compared_bytes;
  Json differences = Json::array();
  for (const TensorDifference& one : comparison.differences) {
    Json difference = {{"kind", difference_name(one.kind)}, {"tensor", one.tensor}, {"text", one.text}};
    if (one.kind == TensorDifference::Kind::bytes) {
      difference["first_bytes"] = one.first_bytes;
      difference["differing_bytes"] = one.differing_bytes;
      difference["file_offset_bytes"] = optional(one.file_offset_bytes);
      difference["other_file_offset_bytes"] = optional(one.other_file_offset_bytes);
    }
    differences.push_back(std::move(difference));
  }
  json["differences"] = std::move(differences);
  return convert::text(json);
}

}  // namespace headrace
