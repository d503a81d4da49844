// SPDX-License-Identifier: Apache-2.0
// Help texts that fit the terminal: CLI11's own are as wide as their longest line.
// One thread.
// Owns nothing.
#pragma once

#include <memory>

#include <CLI/CLI.hpp>

namespace headrace::cli {

// For text `columns` wide; 40 at least.
[[nodiscard]] std::shared_ptr<CLI::FormatterBase> make_help_formatter(size_t columns);

}  // namespace headrace::cli
