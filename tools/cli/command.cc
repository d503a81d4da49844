// SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "nearest.h"
#include "python.h"
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

std::string first_of(const std::string& names) { return names.substr(0, names.find(',')); }

void refuse(const std::string& name, const std::string& why) {
  if (!why.empty()) throw CLI::ValidationError(name, why);
}

}  // namespace

void set_error_form(OutputForm form) { error_form = form; }

CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description) {
  return parent.add_subcommand(name, description);
}

Command choose_among(CLI::App* parser, std::vector<Command> commands) {
  parser->require_subcommand(1);
  return {parser, [parser, commands = std::move(commands)](Console& console) {
            for (const Command& command : commands)
              if (command.parser->parsed()) return command.run(console);
            return report_usage(console, fmt::format("{} needs a command", parser->get_name()));
          }};
}

Command pass_to_python(CLI::App* command, std::vector<std::string> words) {
  command->prefix_command();  // its options are not known here
  command->set_help_flag();
  return {command, [command, words = std::move(words)](Console& console) {
            std::vector<std::string> all = words;
            for (const std::string& word : command->remaining())
              all.push_back(word);
            return become_python(console, all);
          }};
}

void add_examples(CLI::App& command, const std::string& examples) { command.footer(examples); }

const Argument& Argument::value(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

const Argument& Argument::group(const std::string& heading) const {
  option_->group(heading);
  return *this;
}

const Argument& Argument::shown_default(const std::string& text) const {
  option_->default_str(text);
  return *this;
}

const Argument& Argument::required() const {
  option_->required();
  return *this;
}

const Argument& Argument::values_up_to(uint32_t most) const {
  option_->expected(1, static_cast<int>(most));
  return *this;
}

Argument add_text(CLI::App& command, const std::string& names, std::string& target, const std::string& description) {
  return Argument(command.add_option(names, target, description));
}

Argument add_text(CLI::App& command, const std::string& names, std::optional<std::string>& target,
                  const std::string& description) {
  return Argument(command.add_option(names, target, description));
}

Argument add_texts(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                   const std::string& description) {
  return Argument(command.add_option(names, target, description));
}

Argument add_flag(CLI::App& command, const std::string& names, bool& target, const std::string& description) {
  return Argument(command.add_flag(names, target, description));
}

Argument add_flag_action(CLI::App& command, const std::string& names, std::function<std::string()> action,
                         const std::string& description) {
  return Argument(command.add_flag_callback(
      names, [action = std::move(action), name = first_of(names)] { refuse(name, action()); }, description));
}

Argument add_parsed(CLI::App& command, const std::string& names, std::function<std::string(const std::string&)> parse,
                    const std::string& description) {
  return Argument(command.add_option_function<std::string>(
      names, [parse = std::move(parse), name = first_of(names)](const std::string& text) { refuse(name, parse(text)); },
      description));
}

Argument add_choice(CLI::App& command, const std::string& names, std::string& target,
                    const std::vector<std::string>& choices, const std::string& description) {
  CLI::Option* const option = command.add_option(names, target, description);
  option->check([choices](const std::string& word) { return none_of(word, choices); });
  option->type_name(fmt::format("{}", fmt::join(choices, "|")));
  if (!target.empty()) option->default_str(target);
  return Argument(option);
}

Argument add_choices(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                     const std::vector<std::string>& choices, const std::string& description) {
  CLI::Option* const option = command.add_option(names, target, description);
  option->delimiter(',');
  option->check([choices](const std::string& word) { return none_of(word, choices); });
  option->type_name(fmt::format("{}", fmt::join(choices, ",")));
  return Argument(option);
}

bool was_given(const CLI::App& command, const std::string& name) { return command.count(name) != 0; }

std::string none_of(const std::string& word, const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, word) != choices.end()) return {};
  const std::optional<std::string_view> meant = nearest(word, choices);
  return fmt::format("'{}' is none of {}{}", word, fmt::join(choices, ", "),
                     meant ? fmt::format("; did you mean '{}'?", *meant) : std::string());
}

Argument add_repeated(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                      const std::string& value, const std::string& description) {
  CLI::Option* const option = command.add_option(names, target, description);
  option->allow_extra_args(false);
  option->type_name(value);
  return Argument(option);
}

Argument add_bytes(CLI::App& command, const std::string& names, uint64_t& target, const std::string& description,
                   const std::string& shown) {
  const auto parse = [&target](const std::string& text) {
    const std::expected<uint64_t, std::string> bytes = parse_bytes(text);
    if (!bytes) return bytes.error();
    if (*bytes == 0) return fmt::format("'{}' is nothing; leave the option out", text);
    target = *bytes;
    return std::string();
  };
  const Argument argument = add_parsed(command, names, parse, description).value("SIZE");
  if (!shown.empty()) argument.shown_default(shown);
  return argument;
}

void add_json(CLI::App& command, OutputForm& form) {
  const auto chosen = [&form] {
    form = OutputForm::json;
    return std::string();
  };
  add_flag_action(command, "--json", chosen,
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
