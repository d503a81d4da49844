// SPDX-License-Identifier: Apache-2.0
// `headrace bench engines FOLDER`: the ways to ask the kernel, side by side.
// One thread.
// Owns its options.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench.h"
#include "units.h"

namespace headrace::cli {
namespace {

constexpr uint32_t kRepeatsDefault = 7;

struct Options {
  std::vector<std::string> folders;
  std::vector<std::string> engines = {"null", "posix", "aio", "uring"};
  IoArguments io;
  OutputForm form = OutputForm::text;
};

EnginesOptions settled(const Options& options) {
  EnginesOptions out;
  out.settings = options.io.settings;
  out.engines.clear();
  for (const std::string& name : options.engines)
    out.engines.push_back(engine_from_name(name).value_or(EngineKind::automatic));
  out.directions.clear();
  const bool both = options.io.read == options.io.write;
  if (both || options.io.read) out.directions.push_back(IoDirection::read);
  if (both || options.io.write) out.directions.push_back(IoDirection::write);
  return out;
}

// What the fastest engine that moves bytes reaches in this direction.
double best_of(const std::vector<EngineRow>& rows, IoDirection direction) {
  double best = 0;
  for (const EngineRow& row : rows) {
    if (row.direction == direction && row.engine != EngineKind::null && row.result)
      best = std::max(best, row.result->gb_per_s.median);
  }
  return best;
}

std::vector<std::string> cells_of(const EngineRow& row, double best) {
  std::vector<std::string> cells = {std::string(direction_name(row.direction)), std::string(engine_name(row.engine))};
  if (!row.result) {
    cells.emplace_back("-");
    return cells;
  }
  const IoResult& result = *row.result;
  // The rate of an engine that moves nothing is that of counting, which no disk has anything to do with.
  const bool null = row.engine == EngineKind::null;
  const auto rate = [&](double value) { return null ? std::string("-") : fmt::format("{:.2f}", value); };
  cells.insert(cells.end(), {rate(result.gb_per_s.median), rate(result.gb_per_s.min), rate(result.gb_per_s.max),
                             null || best <= 0 ? "-" : fmt::format("{:.2f}", result.gb_per_s.median / best),
                             fmt::format("{:.4f}", result.cpu_seconds_per_gb.median)});
  return cells;
}

void print_text(Console& console, const BenchmarkFiles& files, const std::vector<EngineRow>& rows) {
  const auto measured = std::ranges::find_if(rows, [](const EngineRow& row) { return row.result.has_value(); });
  std::string places;
  for (const BenchmarkPlace& place : files.places())
    places += (places.empty() ? "" : ", ") + show_place(place);
  console.line(fmt::format("{} in {}", show_size(files.file_bytes() * files.count()), places));
  if (measured != rows.end()) {
    const HandleFacts& facts = measured->result->handle;
    console.line(fmt::format("{} blocks, depth {}, {} worker{}; {} repeats of each, in turn; writes {}",
                             show_size(facts.block_bytes), facts.queue_depth, facts.workers,
                             facts.workers == 1 ? "" : "s", measured->result->samples.size(),
                             measured->result->settings.durability == Durability::data ? "durable" : "not durable"));
  }
  console.line();
  Table table({{""},
               {"engine"},
               {"GB/s", Align::right},
               {"min", Align::right},
               {"max", Align::right},
               {"of best", Align::right},
               {"cpu-s/GB", Align::right}});
  for (const EngineRow& row : rows)
    table.row(cells_of(row, best_of(rows, row.direction)));
  table.print(console);
  if (std::ranges::find(rows, EngineKind::null, &EngineRow::engine) != rows.end())
    console.line("null moves nothing: its CPU time is headrace's own.");
  for (const EngineRow& row : rows) {
    if (!row.result)
      console.line(fmt::format("{} {}: {}", direction_name(row.direction), engine_name(row.engine),
                               printable(row.result.error().message())));
  }
  for (const EngineRow& row : rows) {
    if (row.result && row.result->cold == false)
      console.line(fmt::format("{} {}: not cold, the page cache took part", direction_name(row.direction),
                               engine_name(row.engine)));
  }
}

// What a benchmark costs is known before it begins: SSDs wear.
void announce(Console& console, const BenchmarkFiles& files, const EnginesOptions& options) {
  const uint64_t set_bytes = files.file_bytes() * files.count();
  const auto moving = static_cast<uint64_t>(options.engines.size()) -
                      static_cast<uint64_t>(std::ranges::count(options.engines, EngineKind::null));
  const uint64_t rounds = uint64_t{options.settings.repeats} + options.settings.warm_ups;
  uint64_t bytes = 0;
  for (const IoDirection direction : options.directions)
    bytes += moving == 0 ? 0 : direction == IoDirection::read ? set_bytes : rounds * moving * set_bytes;
  console.note(fmt::format("headrace: writes {} in all, and takes {} of space until it ends", show_bytes(bytes),
                           show_bytes(set_bytes)));
}

// What the library calls an argument comes from the command line here.
Exit failed(Console& console, const Error& error) {
  return error.code == ErrorCode::invalid_argument ? report_usage(console, error.message())
                                                   : report_error(console, error);
}

Exit run_engines(Console& console, Options& options) {
  if (options.io.io_bytes == 0) return report_usage(console, "--io-size is 0: there is nothing to measure");
  options.io.apply();
  const Result<BenchmarkFiles> files =
      BenchmarkFiles::create({.folders = options.folders, .file_bytes = options.io.io_bytes});
  if (!files) return failed(console, files.error());
  const EnginesOptions settings = settled(options);
  announce(console, *files, settings);
  ProgressBar bar(console);
  const Result<std::vector<EngineRow>> rows = benchmark_engines(*files, settings, bar.progress());
  if (!rows) return failed(console, rows.error());
  console.show_status({});
  if (options.form == OutputForm::json)
    console.line(to_json(*rows));
  else
    print_text(console, *files, *rows);
  const bool moves = std::ranges::any_of(*rows, [](const EngineRow& row) { return row.engine != EngineKind::null; });
  const bool any = std::ranges::any_of(
      *rows, [&](const EngineRow& row) { return row.result && (row.engine != EngineKind::null || !moves); });
  return any ? Exit::done : Exit::failed;
}

}  // namespace

Command add_bench_engines(CLI::App& bench) {
  CLI::App* command = add_command(
      bench, "engines",
      "Measure io_uring, Linux AIO and threads side by side.\n"
      "Each engine reads and writes the same file in turn, so that a disk that others use too is fair to all. The "
      "engine null moves nothing and shows headrace's own cost.");
  const auto options = std::make_shared<Options>();
  options->io.settings.repeats = kRepeatsDefault;
  add_texts(*command, "FOLDER", options->folders, "folders on the disks to measure, all at once").required();
  add_choices(*command, "--engine", options->engines, {"null", "posix", "aio", "uring"}, "The engines to compare.")
      .shown_default("all");
  add_flag(*command, "--read", options->io.read, "Measure reading only.");
  add_flag(*command, "--write", options->io.write, "Measure writing only.");
  add_io_arguments(*command, options->io);
  add_json(*command, options->form);
  add_examples(*command,
               "Examples:\n"
               "  headrace bench engines /data\n"
               "  headrace bench engines /data --read --engine aio,uring --block-size 1M\n"
               "  headrace bench engines /data --json > before.json");
  return {command, [options](Console& console) { return run_engines(console, *options); }};
}

}  // namespace headrace::cli
