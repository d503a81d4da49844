// SPDX-License-Identifier: Apache-2.0
// The settings of a measurement, from the command line.
// One thread.
// See the header for ownership.
#include <charconv>

#include <fmt/format.h>

#include "bench.h"
#include "units.h"

namespace headrace::cli {
namespace {

constexpr const char* kHow = "How it is done";
constexpr const char* kMeasured = "How it is measured";

Ladder ladder_of(const std::string& word) {
  if (word == "never") return Ladder::never;
  return word == "required" ? Ladder::required : Ladder::automatic;
}

CopyMode copy_of(const std::string& word) {
  if (word == "never") return CopyMode::never;
  return word == "always" ? CopyMode::always : CopyMode::automatic;
}

PageKind pages_of(const std::string& word) {
  if (word == "small") return PageKind::small;
  return word == "reserved" ? PageKind::reserved : PageKind::transparent;
}

Argument add_block_size(CLI::App& command, uint64_t& target) {
  const auto parse = [&target](const std::string& text) {
    const std::expected<uint64_t, std::string> bytes = text == "auto" ? uint64_t{0} : parse_bytes(text);
    if (!bytes) return bytes.error();
    if (text != "auto" && (*bytes < kBlockBytesMin || *bytes > kBlockBytesMax || *bytes % kBlockBytesMin != 0))
      return fmt::format("'{}' is neither 'auto' nor among the multiples of {} up to {}", text, kBlockBytesMin,
                         show_size(kBlockBytesMax));
    target = *bytes;
    return std::string();
  };
  return add_parsed(command, "--block-size,--block_size", parse, "Largest piece of one system call.")
      .value("SIZE|auto")
      .shown_default(target == 0 ? "auto" : show_size(target));
}

void add_measuring(CLI::App& command, IoArguments& arguments) {
  IoSettings& settings = arguments.settings;
  add_bytes(command, "--io-size,--io_size", arguments.io_bytes, "Bytes of each file that one repeat moves.",
            show_size(arguments.io_bytes))
      .group(kMeasured);
  add_number(command, "--repeats,--loops", settings.repeats, {.min = 1, .max = kBenchmarkRepeatsMax},
             "Repeats that count. Six are the least for a sure interval.")
      .group(kMeasured);
  add_number(command, "--warmup-loops,--warmup_loops", settings.warm_ups, {.min = 0, .max = kBenchmarkRepeatsMax},
             "Repeats beforehand that do not count.")
      .group(kMeasured);
  add_flag(command, "--validate", arguments.validate,
           "Compare every byte, outside the time: reads with what was written, writes by reading them back. "
           "Wrong bytes end it with exit status 3.")
      .group(kMeasured);
  add_flag(command, "--durable,!--no-durable", arguments.durable,
           "Writes: have the sync to the device inside the time (default), or leave it out as ds_io does.")
      .group(kMeasured);
}

void add_doing(CLI::App& command, IoArguments& arguments) {
  IoSettings& settings = arguments.settings;
  add_block_size(command, settings.block_bytes).group(kHow);
  add_number(command, "--queue-depth,--queue_depth", settings.queue_depth,
             {.min = 1, .max = kQueueDepthMax, .zero = Zero::is_auto},
             "Blocks in flight of each worker; all together never have more than 128 MiB in flight.")
      .group(kHow);
  add_number(command, "--io-parallel,--io_parallel,--workers", settings.workers,
             {.min = 1, .max = kWorkersMax, .zero = Zero::is_auto}, "Threads that do the I/O of a file.")
      .group(kHow);
  add_choice(command, "--direct", arguments.direct, {"auto", "never", "required"},
             "Direct I/O: where it works, through the page cache, or fail without it.")
      .group(kHow);
  add_choice(command, "--registered", arguments.registered, {"auto", "never", "required"},
             "Memory registered with io_uring.")
      .group(kHow);
  add_choice(command, "--copy", arguments.copy, {"auto", "always", "never"},
             "Copy through the library's own memory, as is done for memory that is not a headrace Buffer.")
      .group(kHow);
  add_choice(command, "--pages", arguments.pages, {"transparent", "reserved", "small"},
             "Pages of the memory that is read into and written from.")
      .group(kHow);
}

}  // namespace

Argument add_number(CLI::App& command, const std::string& names, uint32_t& target, NumberRange range,
                    const std::string& description) {
  const bool automatic = range.zero == Zero::is_auto;
  const auto parse = [&target, range, automatic](const std::string& text) {
    uint32_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failed] = std::from_chars(text.data(), end, value);
    const bool is_auto = automatic && text == "auto";
    if (!is_auto && (failed != std::errc{} || stop != end || value < range.min || value > range.max))
      return fmt::format("'{}' is no number from {} to {}{}", text, range.min, range.max,
                         automatic ? ", nor 'auto'" : "");
    target = is_auto ? 0 : value;
    return std::string();
  };
  return add_parsed(command, names, parse, description)
      .value(automatic ? "N|auto" : "N")
      .shown_default(automatic && target == 0 ? "auto" : fmt::format("{}", target));
}

void add_io_arguments(CLI::App& command, IoArguments& arguments) {
  add_measuring(command, arguments);
  add_doing(command, arguments);
}

void IoArguments::apply() {
  settings.direct = ladder_of(direct);
  settings.registered = ladder_of(registered);
  settings.copy = copy_of(copy);
  settings.pages = pages_of(pages);
  settings.validate = validate ? Validate::all_bytes : Validate::no;
  settings.durability = durable ? Durability::data : Durability::none;
}

}  // namespace headrace::cli
