// SPDX-License-Identifier: Apache-2.0
// What the JSON of this layer's results have in common.
// Any thread.
// Owns nothing.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <headrace/checkpoint_set.h>

namespace headrace::convert {

using Json = nlohmann::ordered_json;

inline Json head(std::string_view schema) { return {{"schema", schema}, {"version", 1}}; }

inline Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

inline Json problems(const std::vector<CheckpointProblem>& problems) {
  Json all = Json::array();
  for (const CheckpointProblem& problem : problems)
    all.push_back({{"severity", severity_name(problem.severity)},
                   {"file", problem.file},
                   {"tensor", text_or_null(problem.tensor)},
                   {"offset_bytes", problem.offset_bytes},
                   {"text", problem.text}});
  return all;
}

// Names from files need not be UTF-8; JSON must be.
inline std::string text(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace headrace::convert
