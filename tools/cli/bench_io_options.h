// SPDX-License-Identifier: Apache-2.0
// The command line of `headrace bench io`, which is that of ds_io and more.
// One thread.
// Owns what was parsed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench.h"

namespace headrace::cli {

enum class Wanted : uint8_t { if_there, yes, no };

struct BenchIoOptions {
  std::vector<std::string> folders;
  std::vector<std::string> files;
  IoArguments io;
  std::string engine = "auto";
  uint32_t multi_process = 1;
  bool single_submit = false;
  bool sequential_requests = false;
  bool include_warmup_time = false;
  bool different_file_each_iteration = false;
  bool yes = false;
  bool ds_io_lines = false;
  Wanted fio = Wanted::if_there;
  enum class Flush : uint8_t { own_files, yes, no } flush = Flush::own_files;
  OutputForm form = OutputForm::text;

  // As typed: folders of ds_io's names, before settle() has put them into `folders`.
  std::vector<std::string> ds_io_folders;
  std::vector<std::string> mapping;
  bool io_size_given = false;

  // Understands what was typed. What makes no sense, in words; empty when all does.
  [[nodiscard]] std::string settle();

  [[nodiscard]] bool reads() const { return io.read || !files.empty(); }
  [[nodiscard]] bool writes() const { return io.write || !reads(); }
  // Counted warm-ups are repeats.
  [[nodiscard]] uint32_t warm_ups() const { return include_warmup_time ? 0 : io.settings.warm_ups; }
  [[nodiscard]] uint32_t rounds() const { return io.settings.warm_ups + io.settings.repeats; }
  [[nodiscard]] uint32_t files_per_folder() const {
    return multi_process * (different_file_each_iteration ? rounds() : 1);
  }
  [[nodiscard]] uint32_t files_at_once(const BenchmarkFiles& opened) const {
    return different_file_each_iteration ? opened.count() / rounds() : opened.count();
  }
  // What one repeat moves: of a file that exists and is shorter than the default, all of it.
  [[nodiscard]] uint64_t bytes_per_file(const BenchmarkFiles& opened) const;
  [[nodiscard]] uint64_t repeat_bytes(const BenchmarkFiles& opened) const {
    return bytes_per_file(opened) * files_at_once(opened);
  }
  [[nodiscard]] IoSettings settings(const BenchmarkFiles& opened) const;
};

void add_bench_io_options(CLI::App& command, BenchIoOptions& options);

}  // namespace headrace::cli
