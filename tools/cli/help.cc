// SPDX-License-Identifier: Apache-2.0
#include "help.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "console.h"

namespace headrace::cli {
namespace {

constexpr size_t kColumnsMin = 40;
constexpr size_t kIndent = 2;

// Lines of at most `columns`, broken at spaces; a line break in the text stays.
std::string wrap(std::string_view text, size_t columns, size_t indent) {
  const std::string margin(indent, ' ');
  std::string wrapped;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.starts_with(' ')) {  // laid out by hand
      wrapped += fmt::format("{}{}\n", margin, line);
      continue;
    }
    std::string row;
    while (!line.empty()) {
      const std::string_view word = line.substr(0, line.find(' '));
      line.remove_prefix(std::min(word.size() + 1, line.size()));
      if (!row.empty() && indent + text_columns(row) + 1 + text_columns(word) > columns) {
        wrapped += fmt::format("{}{}\n", margin, row);
        row.clear();
      }
      row += row.empty() ? std::string(word) : fmt::format(" {}", word);
    }
    wrapped += row.empty() ? "\n" : fmt::format("{}{}\n", margin, row);
  }
  return wrapped;
}

class Formatter : public CLI::Formatter {
 public:
  explicit Formatter(size_t columns) : columns_(std::max(columns, kColumnsMin)) {}

  std::string make_description(const CLI::App* app) const override {
    const std::string text = app->get_description();
    return text.empty() ? text : wrap(text, columns_, 0) + "\n";
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = fmt::format("Usage: {}", name.empty() ? app->get_name() : name);
    if (!app->get_options([](const CLI::Option* o) { return o->nonpositional(); }).empty()) usage += " [OPTION]...";
    for (const CLI::Option* option : app->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
      const std::string word = option->get_name(true);
      const std::string many = option->get_expected_max() > 1 ? "..." : "";
      usage += option->get_required() ? fmt::format(" {}{}", word, many) : fmt::format(" [{}]{}", word, many);
    }
    if (!app->get_subcommands([](const CLI::App* s) { return !s->get_name().empty(); }).empty())
      usage += " COMMAND ...";
    return wrap(usage, columns_, 0);
  }

  std::string make_footer(const CLI::App* app) const override {
    const std::string text = app->get_footer();
    return text.empty() ? text : wrap(text, columns_, 0);
  }

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = fmt::format("\n{}:\n", group);
    for (const CLI::Option* option : options)
      text += make_option(option, is_positional);
    return text;
  }

  // The option on a line of its own and what it does below: long descriptions then read like text.
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string name = make_option_name(option, is_positional) + make_option_opts(option);
    return fmt::format("{}{}\n{}", std::string(kIndent, ' '), name,
                       wrap(option->get_description(), columns_, 4 * kIndent));
  }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return option->get_name(true);
    // "-j,--json" with a space, and the metavariable behind the names.
    std::string names;
    for (const std::string& name : option->get_snames())
      names += fmt::format("{}-{}", names.empty() ? "" : ", ", name);
    for (const std::string& name : option->get_lnames())
      names += fmt::format("{}--{}", names.empty() ? "" : ", ", name);
    return names;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_items_expected_max() > 0 && !option->get_positional()) {
      text += fmt::format(" {}", option->get_type_name().empty() ? "VALUE" : option->get_type_name());
      if (option->get_expected_max() > 1) text += option->get_allow_extra_args() ? "..." : " (may be repeated)";
    }
    if (!option->get_default_str().empty()) text += fmt::format(" (default: {})", option->get_default_str());
    if (option->get_required() && !option->get_positional()) text += " (required)";
    return text;
  }

  std::string make_subcommand(const CLI::App* command) const override {
    constexpr size_t kNameColumns = 12;
    const std::string text = command->get_description();
    const std::string first = text.substr(0, text.find('\n'));
    const std::string wrapped = wrap(first, columns_, kIndent + kNameColumns);
    return fmt::format("{:<{}}{}", fmt::format("  {}", command->get_name()), kIndent + kNameColumns,
                       wrapped.substr(std::min(kIndent + kNameColumns, wrapped.size())));
  }

 private:
  size_t columns_;
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help_formatter(size_t columns) { return std::make_shared<Formatter>(columns); }

}  // namespace headrace::cli
