// SPDX-License-Identifier: Apache-2.0
// Results of benchmarks as JSON values, for all documents that hold some.
// Any thread; pure.
// Owns nothing.
#pragma once

#include <nlohmann/json.hpp>

#include <headrace/benchmark.h>

namespace headrace::diagnose {

using Json = nlohmann::ordered_json;

[[nodiscard]] Json json_of(const IoResult& result);
[[nodiscard]] Json json_of(const Spread& spread);
[[nodiscard]] Json json_of(const Error& error);
[[nodiscard]] Json places_json(const std::vector<BenchmarkPlace>& places);
[[nodiscard]] Json machine_json(const BenchmarkMachine& machine);
// Text that may hold bytes that are no UTF-8, such as paths: these are replaced.
[[nodiscard]] std::string dump(const Json& value);

}  // namespace headrace::diagnose
