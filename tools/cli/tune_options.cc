// SPDX-License-Identifier: Apache-2.0
// Every option of ds_nvme_tune has an answer here.
// One thread.
// See the header for ownership.
#include "tune_options.h"

#include <charconv>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench.h"

namespace headrace::cli {
namespace {

constexpr const char* kWhat = "What is tuned";
constexpr const char* kBounds = "How long and how much";
constexpr const char* kResult = "What comes of it";
constexpr const char* kElsewhere = "Options of ds_nvme_tune that are refused here";
constexpr const char* kGpu = "GPU support is not there yet: tune without it, in CPU memory";

void add_what(CLI::App& command, TuneArguments& arguments) {
  command.add_option("FOLDER", arguments.folders, "folders on the disks to tune, all at once")->type_name("FOLDER");
  command.add_option("--nvme-dir,--nvme_dir", arguments.nvme_dirs, "The same as FOLDER, as ds_nvme_tune names it.")
      ->type_name("FOLDER")
      ->expected(1, static_cast<int>(kBenchmarkFilesMax))
      ->group(kWhat);
  command
      .add_option("--sweep-config,--sweep_config", arguments.sweep_config,
                  "A JSON file that names the values to try: an object of block_size, queue_depth, io_parallel, "
                  "sequential_requests, single_submit (ds_nvme_tune's names), engine or registered, each with a list. "
                  "What it does not name is tried as without it.")
      ->type_name("FILE")
      ->group(kWhat);
  command.add_flag("--no-read,--no_read", arguments.no_read, "Tune writing alone.")->group(kWhat);
  command.add_flag("--no-write,--no_write", arguments.no_write, "Tune reading alone.")->group(kWhat);
}

void add_bounds(CLI::App& command, TuneArguments& arguments) {
  add_bytes(
      command, "--io-size,--io_size", arguments.tune.io_bytes,
      "Size of the file in each folder, and the most that one repeat moves of it; the bounds below mostly make it "
      "less.",
      show_size(arguments.tune.io_bytes))
      ->group(kBounds);
  add_number(command, "--loops", arguments.tune.loops, {.min = 1, .max = 100},
             "Repeats of each combination in the first round. Later rounds have repeats of their own.")
      ->group(kBounds);
  command
      .add_option_function<std::string>(
          "--max-seconds",
          [&arguments](const std::string& text) {
            double value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, failed] = std::from_chars(text.data(), end, value);
            if (failed != std::errc{} || stop != end || !(value > 0))
              throw CLI::ValidationError("--max-seconds", fmt::format("'{}' is no time in seconds", text));
            arguments.tune.seconds_max = value;
          },
          "About when it ends; repeats are made shorter to fit.")
      ->type_name("SECONDS")
      ->default_str("60")
      ->group(kBounds);
  add_bytes(command, "--max-written,--max_written", arguments.tune.written_bytes_max,
            "Bytes that may be written in all. SSDs wear.", "8 GB for each folder")
      ->group(kBounds);
  add_bytes(command, "--max-read,--max_read", arguments.tune.read_bytes_max, "Bytes that may be read in all.",
            "11 GB for each folder")
      ->group(kBounds);
  command
      .add_flag_callback(
          "--flush-page-cache,--flush_page_cache", [] {},
          "Done in any case: files are dropped from the page cache before each read, without sudo.")
      ->group(kBounds);
}

void add_result(CLI::App& command, TuneArguments& arguments) {
  command
      .add_option("--output,-o", arguments.output,
                  "Write the result there as JSON: what headrace.Handle(profile=FILE) takes.")
      ->type_name("FILE")
      ->group(kResult);
  command.add_option("--html", arguments.html, "Write a page with charts there; it needs nothing beside it.")
      ->type_name("FILE")
      ->group(kResult);
  command
      .add_option("--log-dir,--log_dir", arguments.log_dir,
                  "Write what was measured of each combination into a new folder there, a file each.")
      ->type_name("FOLDER")
      ->group(kResult);
  command.add_flag("--verbose", arguments.verbose, "Print what was measured of each combination.")->group(kResult);
  command
      .add_flag_callback(
          "--fio", [&arguments] { arguments.fio = Wanted::yes; },
          "Fail unless fio can run beside the best settings; by default it runs where it is installed.")
      ->group(kResult);
  command.add_flag_callback(
             "--no-fio", [&arguments] { arguments.fio = Wanted::no; }, "Do not run fio.")
      ->group(kResult);
}

// What makes no sense as a place for a file, whatever the system would say.
std::string cannot_be_named(const std::string& path) {
  if (path.empty()) return {};
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string there = folder.empty() ? "." : folder.string();
  if (std::filesystem::is_directory(path, failed)) return fmt::format("{} is a folder; name a file", path);
  if (!std::filesystem::is_directory(there, failed))
    return fmt::format("{} is no folder, so {} cannot be written", there, path);
  return {};
}

// The file that would be replaced: links are followed, also those whose target is not there yet.
std::filesystem::path settled(std::filesystem::path path) {
  constexpr int kLinksMax = 40;  // as the kernel has it
  std::error_code failed;
  for (int i = 0; i < kLinksMax && std::filesystem::is_symlink(path, failed); ++i)
    path = path.parent_path() / std::filesystem::read_symlink(path, failed);
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
}

}  // namespace

void add_tune_options(CLI::App& command, TuneArguments& arguments) {
  add_what(command, arguments);
  add_bounds(command, arguments);
  add_result(command, arguments);
  for (const char* const name : {"--gpu", "--gds"}) {
    command.add_flag_callback(
               name, [name] { throw CLI::ValidationError(name, kGpu); }, fmt::format("{}.", kGpu))
        ->group(kElsewhere);
  }
}

std::string TuneArguments::settle() {
  if (!folders.empty() && !nvme_dirs.empty()) return "name folders either by --nvme_dir or without it";
  tune.folders = folders.empty() ? nvme_dirs : folders;
  if (tune.folders.empty()) return "name a folder on the disk to tune";
  if (no_read && no_write) return "--no-read and --no-write together leave nothing to do";
  tune.directions.clear();
  if (!no_read) tune.directions.push_back(IoDirection::read);
  if (!no_write) tune.directions.push_back(IoDirection::write);
  for (const std::string& path : {output, html})
    if (const std::string why = cannot_be_named(path); !why.empty()) return why;
  if (!output.empty() && !html.empty() && settled(output) == settled(html))
    return "--output and --html name the same file";
  return {};
}

}  // namespace headrace::cli
