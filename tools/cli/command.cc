// SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "nearest.h"
#include "units.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

// Of the whole process: an error may come before a command is known.
OutputForm error_form = OutputForm::text;

void print_error_object(Console& console, Json facts) {
  const Json object = {{"schema", "headrace.error"}, {"version", 1}, {"error", std::move(facts)}};
  console.line(object.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

void set_error_form(OutputForm form) { error_form = form; }

void add_examples(CLI::App& command, const std::string& examples) { command.footer(examples); }

CLI::Option* add_choice(CLI::App& command, const std::string& names, std::string& target,
                        const std::vector<std::string>& choices, const std::string& description) {
  CLI::Option* option = command.add_option(names, target, description);
  option->check([choices](const std::string& value) {
    if (std::ranges::find(choices, value) != choices.end()) return std::string();
    const std::optional<std::string_view> meant = nearest(value, choices);
    return fmt::format("'{}' is none of {}{}", value, fmt::join(choices, ", "),
                       meant ? fmt::format("; did you mean '{}'?", *meant) : std::string());
  });
  option->type_name(fmt::format("{}", fmt::join(choices, "|")));
  if (!target.empty()) option->default_str(target);
  return option;
}

CLI::Option* add_repeated(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                          const std::string& type_name, const std::string& description) {
  CLI::Option* option = command.add_option(names, target, description);
  option->allow_extra_args(false);
  option->type_name(type_name);
  return option;
}

CLI::Option* add_bytes(CLI::App& command, const std::string& names, uint64_t& target, const std::string& description,
                       const std::string& shown) {
  CLI::Option* option = command.add_option_function<std::string>(
      names,
      [&target, names](const std::string& text) {
        const std::expected<uint64_t, std::string> bytes = parse_bytes(text);
        const std::string name = names.substr(0, names.find(','));
        if (!bytes) throw CLI::ValidationError(name, bytes.error());
        if (*bytes == 0) throw CLI::ValidationError(name, fmt::format("'{}' is nothing; leave the option out", text));
        target = *bytes;
      },
      description);
  option->type_name("SIZE");
  if (!shown.empty()) option->default_str(shown);
  return option;
}

void add_json(CLI::App& command, OutputForm& form) {
  command.add_flag_callback(
      "--json", [&form] { form = OutputForm::json; },
      "Print the result as one JSON object, whose schema is documented and versioned, instead of text.");
}

Exit report_error(Console& console, const Error& error) {
  console.note(fmt::format("headrace: {}", printable(error.message())));
  if (error_form == OutputForm::json)
    print_error_object(console, {{"code", error_code_name(error.code)},
                                 {"operation", error.operation},
                                 {"path", error.path},
                                 {"offset_bytes", error.offset_bytes},
                                 {"length_bytes", error.length_bytes},
                                 {"errno", error.errno_value == 0 ? Json() : Json(errno_name(error.errno_value))},
                                 {"message", error.message()}});
  return error.code == ErrorCode::corrupt ? Exit::corrupt : Exit::failed;
}

Exit report_usage(Console& console, const std::string& message) {
  console.note(fmt::format("headrace: {}", printable(message)));
  if (error_form == OutputForm::json) print_error_object(console, {{"code", "usage"}, {"message", message}});
  return Exit::usage;
}

}  // namespace headrace::cli
