// SPDX-License-Identifier: Apache-2.0
// What a command of `headrace` is: options added to the parser, and what to do when it was chosen.
// One thread: that of main().
// A command owns its parsed options; the console is main()'s.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <headrace/checkpoint_set.h>
#include <headrace/error.h>

#include "console.h"

// The parser's header takes longer to compile than most of what includes this one: who adds options includes it.
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
// An option whose value is one of `choices`; a misspelt one is refused with the nearest.
CLI::Option* add_choice(CLI::App& command, const std::string& names, std::string& target,
                        const std::vector<std::string>& choices, const std::string& description);
// An option that may stand there several times, each time with one value, taken as it is: CLI11 itself takes all words that
// follow, and "[a,b]" for two.
CLI::Option* add_repeated(CLI::App& command, const std::string& names, std::vector<std::string>& target,
                          const std::string& type_name, const std::string& description);
// An option or argument that is a size: see parse_bytes(). Its default, if it has one, is shown as `shown`.
CLI::Option* add_bytes(CLI::App& command, const std::string& names, uint64_t& target, const std::string& description,
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
