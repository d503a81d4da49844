// SPDX-License-Identifier: Apache-2.0
// What a command of `headrace` is: options added to the parser, and what to do when it was chosen.
// One thread: that of main().
// A command owns its parsed options; the console is main()'s.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <headrace/checkpoint_set.h>
#include <headrace/error.h>

#include "console.h"

// Of CLI11. Its header takes longer to compile than most of what includes this one, so commands do without it.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace headrace::cli {

// Promised to scripts: docs/cli/README.md.
enum class Exit : int {
  done = 0,
  failed = 1,
  usage = 2,    // the command line makes no sense
  corrupt = 3,  // the data are not what they should be
};

// What the parser found is in the options that it captured.
using Run = std::function<Exit(Console&)>;

struct Command {
  CLI::App* parser = nullptr;
  Run run;
};

// A command of `parent`. The first line of the description is what the help of `parent` says of it.
[[nodiscard]] CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description);
// A command that has commands itself.
[[nodiscard]] Command choose_among(CLI::App* parser, std::vector<Command> commands);

// Each adds itself to the program. The order here is that of the help.
[[nodiscard]] Command add_report(CLI::App& program);
[[nodiscard]] Command add_inspect(CLI::App& program);
[[nodiscard]] Command add_verify(CLI::App& program);
[[nodiscard]] Command add_convert(CLI::App& program);
[[nodiscard]] Command add_demo(CLI::App& program);
[[nodiscard]] Command add_bench(CLI::App& program);
[[nodiscard]] Command add_tune(CLI::App& program);

// A command that is written in Python: what follows it on the command line goes there, behind `words`, --help included.
[[nodiscard]] Command pass_to_python(CLI::App* command, std::vector<std::string> words);
// Adds the paragraph of examples that ends each help text.
void add_examples(CLI::App& command, const std::string& examples);

// One option or argument of a command, which owns it.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}
  // What the help calls its value: "FILE".
  const Argument& value(const std::string& name) const;
  // The heading in the help under which it stands.
  const Argument& group(const std::string& heading) const;
  const Argument& shown_default(const std::string& text) const;
  const Argument& required() const;
  // Takes the words that follow it, so many at most.
  const Argument& values_up_to(uint32_t most) const;

 private:
  CLI::Option* option_;
};

// Names are "--option,--other_name", or "ARGUMENT" for what has no dashes. Targets must live as long as the command.
Argument add_text(CLI::App& command, const std::string& names, std::string& target, const std::string& description);
Argument add_text(CLI::App& command, const std::string& names, std::optional<std::string>& target,
                  const std::string& description);
Argument add_texts(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                   const std::string& description);
Argument add_flag(CLI::App& command, const std::string& names, bool& target, const std::string& description);
// A flag that does something when it is given. Returns what is wrong with that, in words; empty when nothing is.
Argument add_flag_action(CLI::App& command, const std::string& names, std::function<std::string()> action,
                         const std::string& description);
// An option whose value is understood by `parse`, which returns what is wrong with it; empty when nothing is.
Argument add_parsed(CLI::App& command, const std::string& names, std::function<std::string(const std::string&)> parse,
                    const std::string& description);
// An option whose value is one of `choices`; a misspelt one is refused with the nearest.
Argument add_choice(CLI::App& command, const std::string& names, std::string& target,
                    const std::vector<std::string>& choices, const std::string& description);
// The same for several values with commas between them.
Argument add_choices(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                     const std::vector<std::string>& choices, const std::string& description);
[[nodiscard]] bool was_given(const CLI::App& command, const std::string& name);
// What is wrong with a word that is to be one of `choices`, with the nearest; empty when nothing is.
[[nodiscard]] std::string none_of(const std::string& word, const std::vector<std::string>& choices);
// An option that may stand there several times, each time with one value, taken as it is: CLI11 itself takes all words that
// follow, and "[a,b]" for two.
Argument add_repeated(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                      const std::string& value, const std::string& description);
// An option or argument that is a size: see parse_bytes(). Its default, if it has one, is shown as `shown`.
Argument add_bytes(CLI::App& command, const std::string& names, uint64_t& target, const std::string& description,
                   const std::string& shown = {});
// Adds --json to a command that prints a result.
void add_json(CLI::App& command, OutputForm& form);

// Says whether errors are told as JSON too. Of the whole process: one may come before a command is known.
void set_error_form(OutputForm form);
// Says what went wrong, on standard error, and with --json as an object on standard output.
Exit report_error(Console& console, const Error& error);
// The same for a command line that could be parsed and makes no sense.
Exit report_usage(Console& console, const std::string& message);

// At most 50 of them, a line each.
void print_problems(Console& console, const std::vector<CheckpointProblem>& problems);

}  // namespace headrace::cli
