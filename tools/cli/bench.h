// SPDX-License-Identifier: Apache-2.0
// What the commands under `headrace bench` share: the settings that they take from the command line, and how results are shown.
// One thread: that of main().
// Options own what was parsed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <headrace/benchmark.h>

#include "command.h"
#include "progress_bar.h"

namespace headrace::cli {

// Each adds itself to `headrace bench`.
[[nodiscard]] Command add_bench_io(CLI::App& bench);
[[nodiscard]] Command add_bench_engines(CLI::App& bench);
[[nodiscard]] Command add_bench_checkpoint(CLI::App& bench);
[[nodiscard]] Command add_bench_compare(CLI::App& bench);

inline constexpr uint64_t kIoBytesDefault = uint64_t{1} << 30;

// Settings under names of their own and, where ds_io has them, under its names. They start as what the caller filled in.
struct IoArguments {
  IoSettings settings;
  uint64_t io_bytes = kIoBytesDefault;
  bool read = false;
  bool write = false;
  // As typed, until apply() has understood them.
  std::string direct = "auto";
  std::string registered = "auto";
  std::string copy = "auto";
  std::string pages = "transparent";
  bool validate = false;
  bool durable = true;

  // The strings and flags into `settings`.
  void apply();
};

void add_io_arguments(CLI::App& command, IoArguments& arguments);

enum class Zero : uint8_t {
  is_a_number,
  is_auto,  // what the word "auto" stands for: the library chooses
};
struct NumberRange {
  uint32_t min = 0;
  uint32_t max = 0;
  Zero zero = Zero::is_a_number;
};
Argument add_number(CLI::App& command, const std::string& names, uint32_t& target, NumberRange range,
                    const std::string& description);

// A flag that gives `target` a value.
template <typename T>
Argument add_setting(CLI::App& command, const std::string& names, T& target, T value, const std::string& description) {
  const auto set = [&target, value] {
    target = value;
    return std::string();
  };
  return add_flag_action(command, names, set, description);
}

// Progress of a command that makes several calls: their bytes follow each other under one total.
class TotalProgress {
 public:
  TotalProgress(Console& console, uint64_t total_bytes) : bar_(console), total_bytes_(total_bytes) {}
  // For the next call, whose bytes count from what add() was told so far. This object must outlive it.
  [[nodiscard]] Progress progress();
  void add(uint64_t bytes) noexcept { done_bytes_ += bytes; }
  void tick(std::string_view what) { show({.what = what}); }
  [[nodiscard]] double seconds() const { return bar_.seconds(); }

 private:
  void show(const ProgressNow& now);

  ProgressBar bar_;
  Progress inner_ = bar_.progress();
  uint64_t total_bytes_;
  uint64_t done_bytes_ = 0;
};

// "3.97 (3.80..4.02)": the median with the least and the greatest; of one value, that value.
[[nodiscard]] std::string show_spread(const Spread& spread, int decimals);
// "1.23 ms"
[[nodiscard]] std::string show_latency(uint64_t nanoseconds);
// "/data (ext4 on nvme0n1)"
[[nodiscard]] std::string show_place(const BenchmarkPlace& place);
// "1 MiB blocks, depth 32, 1 worker, uring": as settled.
[[nodiscard]] std::string show_settings(const IoResult& result);
// What a reader has to know to believe the figure: cold or not, where the bytes went, memory.
void print_facts(Console& console, const IoResult& result);
// "1 MiB", "400 MiB", "1000 B": powers of 1024 where they fit.
[[nodiscard]] std::string show_size(uint64_t bytes);

}  // namespace headrace::cli
