// SPDX-License-Identifier: Apache-2.0
// `headrace demo`: written in Python, because it shows what a Python user gets.
// One thread.
// Owns nothing.
#include "command.h"

namespace headrace::cli {

Command add_demo(CLI::App& program) {
  CLI::App* command = add_command(
      program, "demo", "Move a model and a large buffer through headrace and plain Python, and compare every byte.");
  return pass_to_python(command, {"demo"});
}

}  // namespace headrace::cli
