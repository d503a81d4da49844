// SPDX-License-Identifier: Apache-2.0
// Every option of ds_io has an answer here: the same meaning, or what to use instead.
// One thread.
// See the header for ownership.
#include "bench_io_options.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace headrace::cli {
namespace {

constexpr const char* kWhat = "What is measured";
constexpr const char* kHow = "How it is done";
constexpr const char* kMeasured = "How it is measured";
constexpr const char* kCompared = "What stands beside it";
constexpr const char* kElsewhere = "Options of ds_io that say here what to use instead";
constexpr const char* kGpu = "GPU support is not there yet: measure without it, in CPU memory";
constexpr const char* kSavers = "this is about ways to save tensors: headrace bench checkpoint compares them";

// ds_io's engines by its names, and what to say of those that are none here.
std::string set_engine(const std::string& word, BenchIoOptions& options) {
  if (word == "aio_basic") return "'aio_basic' is 'aio' here";
  if (word == "torch_io" || word == "torch_fastio") return fmt::format("'{}': {}", word, kSavers);
  const std::string name = word == "aio_handle" ? "auto" : word;
  std::string wrong = none_of(name, {"auto", "uring", "aio", "posix", "null"});
  if (wrong.empty()) options.engine = name;
  return wrong;
}

void add_refused_flag(CLI::App& command, const std::string& names, const std::string& why) {
  add_flag_action(command, names, [why] { return why; }, why + ".").group(kElsewhere);
}

void add_what(CLI::App& command, BenchIoOptions& options) {
  add_texts(command, "FOLDER", options.folders, "folders on the disks to measure, all at once").value("FOLDER");
  add_repeated(command, "--folder", options.ds_io_folders, "FOLDER", "The same as FOLDER.").group(kWhat);
  add_texts(command, "--folder-to-device-mapping,--folder_to_device_mapping", options.mapping,
            "Folders, each with the number of a GPU behind it, as ds_io takes them; the numbers change nothing.")
      .value("FOLDER:N")
      .group(kWhat);
  add_repeated(command, "--file", options.files, "PATH",
               "Read this file, which exists, and write nothing. A block device needs --yes.")
      .group(kWhat);
  add_flag(command, "--yes", options.yes, "A block device named with --file may be read.").group(kWhat);
  add_flag(command, "--read", options.io.read, "Measure reading.").group(kWhat);
  add_flag(command, "--write", options.io.write, "Measure writing, also beside --read; the default without it.")
      .group(kWhat);
  add_number(command, "--multi-process,--multi_process", options.multi_process, {.min = 1, .max = kBenchmarkFilesMax},
             "Files in each folder, read or written at once, each by workers of its own.")
      .group(kWhat);
}

void add_how(CLI::App& command, BenchIoOptions& options) {
  add_parsed(
      command, "--engine", [&options](const std::string& word) { return set_engine(word, options); },
      "How the kernel is asked; auto: the first of uring, aio, posix that works. ds_io's aio_handle is auto.")
      .value("auto|uring|aio|posix|null")
      .shown_default("auto")
      .group(kHow);
  add_flag(command, "--single-submit,--single_submit", options.single_submit,
           "Make each block a request of its own, instead of handing in the whole file.")
      .group(kHow);
  add_flag(command, "--sequential-requests,--sequential_requests", options.sequential_requests,
           "Wait for the queue to empty before it is filled again, instead of keeping it full.")
      .group(kHow);
}

void add_measured(CLI::App& command, BenchIoOptions& options) {
  add_flag(command, "--include-warmup-time,--include_warmup_time", options.include_warmup_time,
           "Let the warm-ups count as repeats.")
      .group(kMeasured);
  add_flag(command, "--different-file-each-iteration,--different_file_each_iteration",
           options.different_file_each_iteration, "Use another file for each repeat.")
      .group(kMeasured);
  add_setting(command, "--flush-page-cache,--flush_page_cache", options.flush, BenchIoOptions::Flush::yes,
              "Drop the file from the page cache before each read; done unless --file is given.")
      .group(kMeasured);
  add_setting(command, "--no-flush-page-cache", options.flush, BenchIoOptions::Flush::no,
              "Leave the page cache as it is; with --direct never, reads are then served from memory.")
      .group(kMeasured);
}

void add_compared(CLI::App& command, BenchIoOptions& options) {
  add_setting(command, "--fio", options.fio, Wanted::yes,
              "Fail unless fio can run beside it; by default it runs where it is installed.")
      .group(kCompared);
  add_setting(command, "--no-fio", options.fio, Wanted::no, "Do not run fio, nor gdsio.").group(kCompared);
  add_flag(command, "--ds-io-lines", options.ds_io_lines,
           "End with the four lines that ds_io ends with, for scripts that look for them. A GB is 2^30 bytes there.")
      .group(kCompared);
}

void add_elsewhere(CLI::App& command) {
  add_refused_flag(command, "--gpu", kGpu);
  add_refused_flag(command, "--use-gds,--use_gds", kGpu);
  add_refused_flag(command, "--slow-bounce-buffer,--slow_bounce_buffer",
                   std::string(kGpu) + "; --copy always measures the copy through the library's memory");
  add_refused_flag(command, "--use-accelerator-pin-memory,--use_accelerator_pin_memory",
                   "memory needs no pinning by a framework here; --pages says which kind is used");
  add_refused_flag(command, "--torch-legacy-save,--torch_legacy_save", kSavers);
  add_parsed(
      command, "--fast-io-size,--fast_io_size", [](const std::string&) { return std::string(kSavers); },
      std::string(kSavers) + ".")
      .value("SIZE")
      .group(kElsewhere);
}

// "FOLDER:N"; nothing where it is none.
std::string folder_of(const std::string& entry) {
  const size_t colon = entry.rfind(':');
  if (colon == std::string::npos || colon == 0) return {};
  uint32_t number = 0;
  const char* const end = entry.data() + entry.size();
  const auto [stop, failed] = std::from_chars(entry.data() + colon + 1, end, number);
  return failed == std::errc{} && stop == end ? entry.substr(0, colon) : std::string();
}

}  // namespace

void add_bench_io_options(CLI::App& command, BenchIoOptions& options) {
  // ds_io's defaults.
  options.io.settings.block_bytes = uint64_t{1} << 20;
  options.io.settings.queue_depth = 32;
  options.io.settings.workers = 1;
  add_what(command, options);
  add_how(command, options);
  add_io_arguments(command, options.io);
  add_measured(command, options);
  add_compared(command, options);
  add_elsewhere(command);
}

std::string BenchIoOptions::settle() {
  const int ways =
      (folders.empty() ? 0 : 1) + (ds_io_folders.empty() ? 0 : 1) + (mapping.empty() ? 0 : 1) + (files.empty() ? 0 : 1);
  if (ways == 0) return "name a folder on the disk to measure, or a file with --file";
  if (ways > 1) return "FOLDER, --folder, --folder-to-device-mapping and --file exclude each other";
  if (!mapping.empty() && multi_process != 1) return "--multi-process goes with folders, not with a mapping";
  for (const std::string& entry : mapping) {
    folders.push_back(folder_of(entry));
    if (folders.back().empty()) return fmt::format("'{}' is no FOLDER:N, such as /data:0", entry);
  }
  folders.insert(folders.end(), ds_io_folders.begin(), ds_io_folders.end());
  if (!files.empty() && io.write) return "files that exist are only read: name a folder to measure writing";
  if (!files.empty() && io.validate) return "what the file should hold is not known: --validate needs a folder";
  if (!files.empty() && (multi_process != 1 || different_file_each_iteration))
    return "with --file, give it again for more files at once";
  if (io.io_bytes == 0) return "--io-size is 0: there is nothing to measure";
  io.apply();
  if (engine == "null" && io.validate) return "the engine 'null' moves nothing, so nothing can be validated";
  io.settings.engine = engine_from_name(engine).value_or(EngineKind::automatic);
  io.settings.request = single_submit ? RequestSize::block : RequestSize::file;
  io.settings.order = sequential_requests ? RequestOrder::in_batches : RequestOrder::overlapping;
  return {};
}

uint64_t BenchIoOptions::bytes_per_file(const BenchmarkFiles& opened) const {
  return opened.existing() && !io_size_given ? std::min(opened.file_bytes(), io.io_bytes) : io.io_bytes;
}

IoSettings BenchIoOptions::settings(const BenchmarkFiles& opened) const {
  IoSettings settled = io.settings;
  settled.bytes = bytes_per_file(opened);
  settled.files_at_once = files_at_once(opened);
  const bool drop = flush == Flush::yes || (flush == Flush::own_files && !opened.existing());
  settled.cache = drop ? CacheBefore::drop : CacheBefore::leave_as_is;
  return settled;
}

}  // namespace headrace::cli
