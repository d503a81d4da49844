// SPDX-License-Identifier: Apache-2.0
// `headrace demo`: written in Python, because it shows what a Python user gets.
// One thread.
// Owns nothing.
#include <CLI/CLI.hpp>

#include "command.h"
#include "python.h"

namespace headrace::cli {

Command add_demo(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "demo", "Move a model and a large buffer through headrace and plain Python, and compare every byte.");
  return pass_to_python(command, {"demo"});
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

}  // namespace headrace::cli
