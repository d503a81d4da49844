// SPDX-License-Identifier: Apache-2.0
// `headrace completion bash|zsh`: what the shell needs to complete commands and options.
// One thread.
// Borrows the program's parser for the run.
#pragma once

#include "command.h"

namespace headrace::cli {

[[nodiscard]] Command add_completion(CLI::App& program);

}  // namespace headrace::cli
