// SPDX-License-Identifier: Apache-2.0
// Every option of ds_nvme_tune has an answer here.
// One thread.
// See the header for ownership.
#include "tune_options.h"

#include <charconv>
#include <filesystem>

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
  add_texts(command, "FOLDER", arguments.folders, "folders on the disks to tune, all at once").value("FOLDER");
  add_texts(command, "--nvme-dir,--nvme_dir", arguments.nvme_dirs, "The same as FOLDER, as ds_nvme_tune names it.")
      .value("FOLDER")
      .values_up_to(kBenchmarkFilesMax)
      .group(kWhat);
  add_text(command, "--sweep-config,--sweep_config", arguments.sweep_config,
           "A JSON file that names the values to try: an object of block_size, queue_depth, io_parallel, "
           "sequential_requests, single_submit (ds_nvme_tune's names), engine or registered, each with a list. "
           "What it does not name is tried as without it.")
      .value("FILE")
      .group(kWhat);
  add_flag(command, "--no-read,--no_read", arguments.no_read, "Tune writing alone.").group(kWhat);
  add_flag(command, "--no-write,--no_write", arguments.no_write, "Tune reading alone.").group(kWhat);
}

void add_bounds(CLI::App& command, TuneArguments& arguments) {
  add_bytes(
      command, "--io-size,--io_size", arguments.tune.io_bytes,
      "Size of the file in each folder, and the most that one repeat moves of it; the bounds below mostly make it "
      "less.",
      show_size(arguments.tune.io_bytes))
      .group(kBounds);
  add_number(command, "--loops", arguments.tune.loops, {.min = 1, .max = 100},
             "Repeats of each combination in the first round. Later rounds have repeats of their own.")
      .group(kBounds);
  const auto parse_seconds = [&arguments](const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failed] = std::from_chars(text.data(), end, value);
    if (failed != std::errc{} || stop != end || !(value > 0)) return fmt::format("'{}' is no time in seconds", text);
    arguments.tune.seconds_max = value;
    return std::string();
  };
  add_parsed(command, "--max-seconds", parse_seconds, "About when it ends; repeats are made shorter to fit.")
      .value("SECONDS")
      .shown_default("60")
      .group(kBounds);
  add_bytes(command, "--max-written,--max_written", arguments.tune.written_bytes_max,
            "Bytes that may be written in all. SSDs wear.", "8 GB for each folder")
      .group(kBounds);
  add_bytes(command, "--max-read,--max_read", arguments.tune.read_bytes_max, "Bytes that may be read in all.",
            "11 GB for each folder")
      .group(kBounds);
  add_flag_action(
      command, "--flush-page-cache,--flush_page_cache", [] { return std::string(); },
      "Done in any case: files are dropped from the page cache before each read, without sudo.")
      .group(kBounds);
}

void add_result(CLI::App& command, TuneArguments& arguments) {
  add_text(command, "--output,-o", arguments.output,
           "Write the result there as JSON: what headrace.Handle(profile=FILE) takes.")
      .value("FILE")
      .group(kResult);
  add_text(command, "--html", arguments.html, "Write a page with charts there; it needs nothing beside it.")
      .value("FILE")
      .group(kResult);
  add_text(command, "--log-dir,--log_dir", arguments.log_dir,
           "Write what was measured of each combination into a new folder there, a file each.")
      .value("FOLDER")
      .group(kResult);
  add_flag(command, "--verbose", arguments.verbose, "Print what was measured of each combination.").group(kResult);
  add_setting(command, "--fio", arguments.fio, Wanted::yes,
              "Fail unless fio can run beside the best settings; by default it runs where it is installed.")
      .group(kResult);
  add_setting(command, "--no-fio", arguments.fio, Wanted::no, "Do not run fio.").group(kResult);
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
    add_flag_action(command, name, [] { return std::string(kGpu); }, fmt::format("{}.", kGpu)).group(kElsewhere);
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
