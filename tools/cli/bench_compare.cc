// SPDX-License-Identifier: Apache-2.0
// `headrace bench compare A.json B.json`: what of a difference is more than noise.
// One thread.
// Owns its options and the two documents.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "json_file.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

// GB/s. Slower than a byte a second, or faster than any memory, is not measured but made up.
constexpr double kRateMin = 1e-9;
constexpr double kRateMax = 1e9;

struct Options {
  std::string a;
  std::string b;
  std::optional<double> fail_below;
  bool anyway = false;
  OutputForm form = OutputForm::text;
};

struct Row {
  std::string name;
  Spread a;
  Spread b;
  // B by A. The interval is that of the two medians taken together, at its widest.
  double ratio = 0;
  double low = 0;
  double high = 0;
};

struct Comparison {
  std::vector<Row> rows;
  std::vector<std::string> differences;  // of settings and machines, for people
  std::vector<std::string> missing;      // rows that only one of the two has, for people
  std::vector<std::string> lost;         // names of those that the second lacks
};

struct Document {
  std::string schema;
  std::map<std::string, Json> rows;  // by "read", or "read uring"
};

// Throws Json::exception for what lacks a key.
Document document_of(const Json& value) {
  Document document;
  document.schema = value.at("schema").get<std::string>();
  if (document.schema == "headrace.bench-io") {
    for (const Json& result : value.at("results"))
      document.rows.emplace(result.at("direction").get<std::string>(), result);
  } else if (document.schema == "headrace.bench-engines") {
    for (const Json& row : value.at("rows")) {
      if (row.at("result").is_null() || row.at("engine") == "null") continue;
      document.rows.emplace(
          fmt::format("{} {}", row.at("direction").get<std::string>(), row.at("engine").get<std::string>()),
          row.at("result"));
    }
  }
  return document;
}

Result<Document> read_document(const std::string& path) {
  const auto refused = [&](std::string detail) {
    return std::unexpected(
        Error{.code = ErrorCode::invalid_argument, .operation = "compare", .path = path, .detail = std::move(detail)});
  };
  const Result<std::string> text = read_json_text(path);
  if (!text) return std::unexpected(text.error());
  const std::expected<Json, std::string> value = parse_json<Json>(*text);
  if (!value) return refused(value.error());
  try {
    Document document = document_of(*value);
    if (value->at("version") != 1)
      return refused(fmt::format("it has version {}, and this program knows 1", value->at("version").dump()));
    if (!document.rows.empty()) return document;
  } catch (const Json::exception&) {
    // Told below: what is missing helps nobody who took the wrong file.
  }
  return refused("it is no result of headrace bench io or engines; make one with --json > FILE");
}

// Throws Json::exception for what lacks a key, or is no rate: a ratio of such numbers says nothing.
Spread spread_in(const Json& object) {
  const auto rate = [&](const char* key) {
    const auto value = object.at(key).get<double>();
    if (!(value >= kRateMin && value <= kRateMax))
      throw Json::other_error::create(0, fmt::format("{} is {} GB/s, which is no rate", key, value), nullptr);
    return value;
  };
  return {.count = object.at("count").get<uint64_t>(),
          .median = rate("median"),
          .min = rate("min"),
          .max = rate("max"),
          .low = rate("low"),
          .high = rate("high"),
          .sure = object.at("sure").get<bool>()};
}

// Every value in which the two objects differ, by its path.
void differences(const Json& a, const Json& b, const std::string& where, std::vector<std::string>& found) {
  const Json none;
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.items())
      differences(value, b.contains(key) ? b.at(key) : none, where + "." + key, found);
    for (const auto& [key, value] : b.items()) {
      if (!a.contains(key)) differences(none, value, where + "." + key, found);
    }
    return;
  }
  if (a == b) return;
  std::string text = fmt::format("{}: {} and {}", where, a.dump(-1, ' ', false, Json::error_handler_t::replace),
                                 b.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (std::ranges::find(found, text) == found.end()) found.push_back(std::move(text));
}

Row row_of(const std::string& name, const Json& a, const Json& b) {
  Row row = {.name = name, .a = spread_in(a.at("gb_per_s")), .b = spread_in(b.at("gb_per_s"))};
  row.ratio = row.b.median / row.a.median;
  row.low = row.b.low / row.a.high;
  row.high = row.b.high / row.a.low;
  return row;
}

// Throws Json::exception for what lacks a key.
Comparison compare(const Document& a, const Document& b) {
  Comparison comparison;
  for (const auto& [name, left] : a.rows) {
    const auto right = b.rows.find(name);
    if (right == b.rows.end()) {
      comparison.missing.push_back(fmt::format("{} is in the first only", name));
      comparison.lost.push_back(name);
      continue;
    }
    for (const char* const key : {"settings", "resolved", "machine", "places", "cold"})
      differences(left.at(key), right->second.at(key), key, comparison.differences);
    comparison.rows.push_back(row_of(name, left, right->second));
  }
  for (const auto& [name, right] : b.rows) {
    if (!a.rows.contains(name)) comparison.missing.push_back(fmt::format("{} is in the second only", name));
  }
  return comparison;
}

std::string verdict(const Row& row) {
  if (!row.a.sure || !row.b.sure) return "too few repeats to say";
  if (row.low > 1) return "faster";
  return row.high < 1 ? "slower" : "no difference that is sure";
}

std::string show_ratio(double ratio) {
  constexpr double kPlainMax = 1e5;
  return ratio < kPlainMax ? fmt::format("{:.3f}", ratio) : fmt::format("{:.3g}", ratio);
}

void print_text(Console& console, const Comparison& comparison) {
  for (const std::string& text : comparison.differences)
    console.line(fmt::format("differs: {}", printable(text)));
  for (const std::string& text : comparison.missing)
    console.line(printable(text));
  if (!comparison.differences.empty() || !comparison.missing.empty()) console.line();
  Table table({{""},
               {"first GB/s", Align::right},
               {"second GB/s", Align::right},
               {"ratio", Align::right},
               {"from", Align::right},
               {"to", Align::right},
               {"verdict"}});
  for (const Row& row : comparison.rows)
    table.row({printable(row.name), fmt::format("{:.2f}", row.a.median), fmt::format("{:.2f}", row.b.median),
               show_ratio(row.ratio), show_ratio(row.low), show_ratio(row.high), verdict(row)});
  table.print(console);
}

void print_json(Console& console, const Options& options, const Comparison& comparison) {
  Json rows = Json::array();
  for (const Row& row : comparison.rows) {
    rows.push_back({{"name", row.name},
                    {"first_gb_per_s", row.a.median},
                    {"second_gb_per_s", row.b.median},
                    {"ratio", row.ratio},
                    {"low", row.low},
                    {"high", row.high},
                    {"sure", row.a.sure && row.b.sure},
                    {"verdict", verdict(row)}});
  }
  const Json document = {{"schema", "headrace.bench-compare"},
                         {"version", 1},
                         {"first", options.a},
                         {"second", options.b},
                         {"differences", comparison.differences},
                         {"missing", comparison.missing},
                         {"rows", std::move(rows)}};
  console.line(document.dump(2, ' ', false, Json::error_handler_t::replace));
}

// Noise fails nothing: the whole interval has to be below. What the second lacks was too slow to be there at all.
Exit judge(Console& console, const Options& options, const Comparison& comparison) {
  if (!options.fail_below) return Exit::done;
  Exit code = Exit::done;
  for (const Row& row : comparison.rows) {
    if (!row.a.sure || !row.b.sure) {
      console.note(
          fmt::format("headrace: {} has too few repeats to be judged; --repeats 6 is the least", printable(row.name)));
      continue;
    }
    if (row.high >= *options.fail_below) continue;
    console.note(fmt::format("headrace: {} is {} of what it was, at most {}, which is below {}", printable(row.name),
                             show_ratio(row.ratio), show_ratio(row.high), *options.fail_below));
    code = Exit::failed;
  }
  for (const std::string& name : comparison.lost) {
    console.note(fmt::format("headrace: {} is not in the second", printable(name)));
    code = Exit::failed;
  }
  return code;
}

Exit run_compare(Console& console, const Options& options) {
  const auto failed = [&](std::string detail) {
    return report_error(console,
                        {.code = ErrorCode::invalid_argument, .operation = "compare", .detail = std::move(detail)});
  };
  const Result<Document> a = read_document(options.a);
  if (!a) return report_error(console, a.error());
  const Result<Document> b = read_document(options.b);
  if (!b) return report_error(console, b.error());
  if (a->schema != b->schema) return failed(fmt::format("one is of {}, the other of {}", a->schema, b->schema));
  Comparison comparison;
  try {
    comparison = compare(*a, *b);
  } catch (const Json::exception& wrong) {
    return failed(fmt::format("one of the two is not as this version writes it: {}", wrong.what()));
  }
  if (comparison.rows.empty()) return failed("the two have no row in common");
  if (!comparison.differences.empty() && !options.anyway) {
    for (const std::string& text : comparison.differences)
      console.note(fmt::format("differs: {}", printable(text)));
    return failed(
        "settings or machines differ, so a ratio would not say what made the difference; --anyway compares all the "
        "same");
  }
  if (options.form == OutputForm::json)
    print_json(console, options, comparison);
  else
    print_text(console, comparison);
  return judge(console, options, comparison);
}

}  // namespace

Command add_bench_compare(CLI::App& bench) {
  CLI::App* command = add_command(
      bench, "compare",
      "Compare two results of bench io or bench engines.\n"
      "Rows that match are set against each other, with an interval that says how sure their ratio is. Results with "
      "other settings or of other machines are refused, with what differs, unless --anyway is given.");
  const auto options = std::make_shared<Options>();
  add_text(*command, "A", options->a, "a result, as --json printed it").required();
  add_text(*command, "B", options->b, "the one to compare with it").required();
  const auto parse_ratio = [options](const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failed] = std::from_chars(text.data(), end, value);
    if (failed != std::errc{} || stop != end || !(value > 0) || !std::isfinite(value))
      return fmt::format("'{}' is no ratio, such as 0.95", text);
    options->fail_below = value;
    return std::string();
  };
  add_parsed(*command, "--fail-below", parse_ratio,
             "Exit with status 1 if the rate of B is less than this many times that of A in any row.")
      .value("RATIO");
  add_flag(*command, "--anyway", options->anyway, "Compare although settings or machines differ, and say what does.");
  add_json(*command, options->form);
  add_examples(*command,
               "Examples:\n"
               "  headrace bench engines /data --json > before.json\n"
               "  headrace bench engines /data --json > after.json\n"
               "  headrace bench compare before.json after.json --fail-below 0.95");
  return {command, [options](Console& console) { return run_compare(console, *options); }};
}

}  // namespace headrace::cli
