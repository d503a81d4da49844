// SPDX-License-Identifier: Apache-2.0
// The program `headrace`: finds the command, runs it, and ends with a code that scripts can rely on.
// One thread beside those of the library.
// Owns everything until the end of main().
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <headrace/version.h>

#include "command.h"
#include "completion.h"
#include "console.h"
#include "help.h"
#include "nearest.h"
#include "signals.h"

namespace headrace::cli {
namespace {

std::vector<std::string> names_of(const CLI::App& command, bool options) {
  std::vector<std::string> names;
  if (options) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames())
        names.push_back("--" + name);
    }
  } else {
    for (const CLI::App* child : command.get_subcommands([](const CLI::App* s) { return !s->get_name().empty(); }))
      names.push_back(child->get_name());
  }
  return names;
}

// The command that was being read when the parser gave up.
const CLI::App& deepest(const CLI::App& program) {
  const CLI::App* at = &program;
  while (!at->get_subcommands().empty())
    at = at->get_subcommands().back();
  return *at;
}

std::string path_of(const CLI::App& command) {
  std::string path = command.get_name();
  for (const CLI::App* above = command.get_parent(); above != nullptr; above = above->get_parent())
    path = fmt::format("{} {}", above->get_name(), path);
  return path;
}

// What is wrong with the command line, and what was probably meant.
std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const bool before_command = !program.remaining(false).empty();
  const CLI::App& command = before_command ? program : deepest(program);
  const std::vector<std::string> extra = program.remaining(!before_command);
  const int code = error.get_exit_code();
  // A word that is no command is told like this as well, as one that is missing.
  const bool required = code == static_cast<int>(CLI::ExitCodes::RequiredError);
  const bool no_command = required && !names_of(command, false).empty();
  // An option that there is not is told before an argument that is missing.
  const bool unknown_option = required && !extra.empty() && extra.front().starts_with("-");
  if ((code != static_cast<int>(CLI::ExitCodes::ExtrasError) && !no_command && !unknown_option) || extra.empty())
    return no_command ? fmt::format("{} needs a command", path_of(command)) : error.what();
  const bool option = extra.front().starts_with("-");
  const std::string word = extra.front().substr(0, extra.front().find('='));
  const bool wants_command = !option && !names_of(command, false).empty();
  std::string text = fmt::format("{} has no {} '{}'", path_of(command),
                                 option ? "option" : (wants_command ? "command" : "further argument"), printable(word));
  if (option && before_command && std::ranges::count(names_of(deepest(program), true), word) > 0)
    return fmt::format("{}; write it behind the command: {} {}", text, path_of(deepest(program)), word);
  if (wants_command && (word == "help" || word == "version"))
    return fmt::format("{}; did you mean '--{}'?", text, word);
  const std::vector<std::string> candidates = names_of(command, option);
  if (const std::optional<std::string_view> meant = nearest(word, candidates))
    text += fmt::format("; did you mean '{}'?", *meant);
  return text;
}

Exit parse_error(Console& console, const CLI::App& program, const CLI::ParseError& error) {
  const std::string message = explain(program, error);
  const Exit code = report_usage(console, message);
  console.note(fmt::format("See: {} --help", path_of(deepest(program))));
  return code;
}

// Behind a command's own options, so it comes last. Commands that pass their words on have none.
void add_help(CLI::App& command) {
  if (!command.get_prefix_command()) command.set_help_flag("--help,-h", "Print this help and exit.");
  for (CLI::App* const child : command.get_subcommands([](const CLI::App*) { return true; }))
    add_help(*child);
}

Exit run(Console& console, int argc, char** argv) {
  CLI::App program("Moves tensors between NVMe storage and memory at the speed of the device.", "headrace");
  program.formatter(make_help_formatter(console.columns() > 0 ? console.columns() : 80));
  program.set_version_flag("--version", fmt::format("headrace {}", HEADRACE_VERSION), "Print the version and exit.");
  program.require_subcommand(1);
  const std::vector<Command> commands = {add_report(program),  add_inspect(program),   add_verify(program),
                                         add_convert(program), add_demo(program),      add_bench(program),
                                         add_tune(program),    add_completion(program)};
  add_help(program);
  add_examples(program,
               "headrace COMMAND --help tells about a command.\n\n"
               "Exit status: 0 done, 1 failed, 2 the command line makes no sense, 3 data are corrupt.");
  if (argc == 1) {
    console.note(program.help());
    return Exit::usage;
  }
  // Which form errors take has to be known before the parser has understood anything.
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--json") set_error_form(OutputForm::json);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::Success)) return parse_error(console, program, error);
    std::ostringstream out;
    (void)program.exit(error, out, out);
    std::string text = std::move(out).str();
    while (text.ends_with('\n'))
      text.pop_back();
    console.line(text);
    return Exit::done;
  }
  for (const Command& command : commands)
    if (command.parser->parsed()) return command.run(console);
  return report_usage(console, "no command was given");
}

// A file opened by this program must never get the number of a standard stream that was closed: messages would be written
// into it. What stands in its place cannot be written to, so that lost output is told.
void take_standard_descriptors() {
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= STDERR_FILENO)
    descriptor = ::open("/dev/null", O_RDONLY);
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

Exit run_in_memory_there_is(Console& console, int argc, char** argv) {
  try {
    return run(console, argc, argv);
  } catch (const std::bad_alloc&) {
    console.note("headrace: out of memory");
    return Exit::failed;
  }
}

}  // namespace

}  // namespace headrace::cli

int main(int argc, char** argv) {
  using namespace headrace::cli;
  take_standard_descriptors();
  install_signal_handlers();
  Console console;
  Exit code = run_in_memory_there_is(console, argc, argv);
  if (!console.flush()) {
    if (console.reader_gone()) end_by_signal(SIGPIPE);  // as programs end that write to a closed pipe
    console.note(fmt::format("headrace: cannot write to standard output: {} ({})",
                             headrace::errno_name(console.write_error()), std::strerror(console.write_error())));
    if (code == Exit::done) code = Exit::failed;
  }
  if (stopped()) end_by_signal(stop_signal());
  return static_cast<int>(code);
}
