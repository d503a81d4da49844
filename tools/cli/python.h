// SPDX-License-Identifier: Apache-2.0
// The Python that belongs to this program: some commands need torch, and are written there.
// One thread.
// Owns nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"

namespace headrace::cli {

// What HEADRACE_PYTHON names; else the python3 beside this program, as in the environment that pip installed both into; else the
// one on PATH.
[[nodiscard]] std::string python_program();
// Becomes `python3 -m headrace ARGUMENTS`; returns only to say why that was not possible.
[[nodiscard]] Exit become_python(Console& console, const std::vector<std::string>& arguments);
// What `python3 -c CODE` printed; nothing where it failed or took longer than 20 s.
[[nodiscard]] std::optional<std::string> ask_python(const std::string& code);

}  // namespace headrace::cli
