// SPDX-License-Identifier: Apache-2.0
// The command line of `headrace tune`, which is that of ds_nvme_tune and more.
// One thread.
// Owns what was parsed.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include <headrace/tune.h>

#include "bench_io_options.h"
#include "command.h"

namespace headrace::cli {

struct TuneArguments {
  TuneOptions tune;  // but folders, directions and space, before settle()
  std::vector<std::string> folders;
  std::vector<std::string> nvme_dirs;
  std::string sweep_config;
  bool no_read = false;
  bool no_write = false;
  bool verbose = false;
  std::string log_dir;
  std::string output;
  std::string html;
  Wanted fio = Wanted::if_there;
  OutputForm form = OutputForm::text;

  // Understands what was typed and reads the sweep file. What makes no sense, in words; empty when all does.
  [[nodiscard]] std::string settle();
};

void add_tune_options(CLI::App& command, TuneArguments& arguments);

// A JSON object of option name to list of values, under ds_nvme_tune's names or ours. What is wrong with it, in words.
[[nodiscard]] std::expected<TuneSpace, std::string> parse_sweep(const std::string& text);

}  // namespace headrace::cli
