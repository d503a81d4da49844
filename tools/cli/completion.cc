// SPDX-License-Identifier: Apache-2.0
#include "completion.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace headrace::cli {
namespace {

std::vector<const CLI::App*> children_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* child) { return !child->get_name().empty(); });
}

// "headrace_bench_io": the words of the command line that lead there.
std::string key_of(const CLI::App& command) {
  std::string key = command.get_name();
  for (const CLI::App* above = command.get_parent(); above != nullptr; above = above->get_parent())
    key = fmt::format("{}_{}", above->get_name(), key);
  return key;
}

// The values that an option or argument can have, as add_choice() shows them; empty where they are not listed.
std::string choices_of(const CLI::Option& option) {
  std::string choices = option.get_type_name();
  if (choices.find('|') == std::string::npos) return {};
  std::ranges::replace(choices, '|', ' ');
  return choices;
}

std::string words_of(const CLI::App& command) {
  std::string words;
  for (const CLI::Option* option : command.get_options())
    if (const std::string choices = choices_of(*option); option->get_positional() && !choices.empty())
      words += choices + " ";
  for (const CLI::App* child : children_of(command))
    words += child->get_name() + " ";
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames())
      words += fmt::format("--{} ", name);
  if (!words.empty()) words.pop_back();
  return words;
}

void bash_cases(Console& console, const CLI::App& command) {
  console.line(fmt::format("    {}) words=\"{}\" ;;", key_of(command), words_of(command)));
  for (const CLI::App* child : children_of(command))
    bash_cases(console, *child);
}

void next_word_cases(Console& console, const CLI::App& command) {
  for (const CLI::App* child : children_of(command)) {
    console.line(fmt::format("      {}:{}) key={} ;;", key_of(command), child->get_name(), key_of(*child)));
    next_word_cases(console, *child);
  }
}

void value_cases(Console& console, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames())
      if (const std::string choices = choices_of(*option); !choices.empty())
        console.line(fmt::format("    {}:--{}) words=\"{}\" values=1 ;;", key_of(command), name, choices));
  for (const CLI::App* child : children_of(command))
    value_cases(console, *child);
}

// One function serves both shells: zsh takes bash's by its bashcompinit.
void print_function(Console& console, const CLI::App& program) {
  console.line("_headrace() {");
  console.line("  local current=${COMP_WORDS[COMP_CWORD]} key=headrace words values= i");
  console.line("  for ((i = 1; i < COMP_CWORD; i++)); do");
  console.line("    case $key:${COMP_WORDS[i]} in");
  next_word_cases(console, program);
  console.line("    esac");
  console.line("  done");
  console.line("  case $key in");
  bash_cases(console, program);
  console.line("  esac");
  console.line("  case $key:${COMP_WORDS[COMP_CWORD-1]} in");
  value_cases(console, program);
  console.line("  esac");
  console.line("  COMPREPLY=()");
  console.line(
      "  if [[ -n $values || $current == -* || $key == headrace || $key == headrace_bench || $key == "
      "headrace_completion ]]; then");
  console.line("    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))");
  console.line("  fi");
  console.line("}");
}

Exit print_completion(Console& console, const CLI::App& program, const std::string& shell) {
  if (shell == "zsh") {
    console.line("#compdef headrace");
    console.line("autoload -U +X bashcompinit && bashcompinit");
  }
  print_function(console, program);
  // Where there is no word of ours the shell offers files.
  console.line("complete -o default -F _headrace headrace");
  // Found in $fpath, the script is the body of the function at its first call, which has to complete as well.
  if (shell == "zsh") console.line("[[ ${funcstack[1]} != _headrace ]] || _bash_complete -o default -F _headrace");
  return Exit::done;
}

}  // namespace

Command add_completion(CLI::App& program) {
  CLI::App* command = add_command(program, "completion", "Print the completion script for bash or zsh.");
  add_examples(*command,
               "Examples:\n"
               "  source <(headrace completion bash)\n"
               "  headrace completion zsh > ~/.zfunc/_headrace");
  const auto shell = std::make_shared<std::string>();
  add_choice(*command, "SHELL", *shell, {"bash", "zsh"}, "the shell: bash or zsh").required();
  return {command, [shell, &program](Console& console) { return print_completion(console, program, *shell); }};
}

}  // namespace headrace::cli
