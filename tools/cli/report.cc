// SPDX-License-Identifier: Apache-2.0
// `headrace report [FOLDER…]`: what this machine can do, and what each engine did in each folder.
// One thread.
// Owns its options.
#include <headrace/report.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <headrace/version.h>

#include "command.h"
#include "progress_bar.h"
#include "python.h"
#include "sheet.h"
#include "units.h"

namespace headrace::cli {

extern const char* const kPythonFacts;  // python/headrace/_python_facts.py

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> folders;
  OutputForm form = OutputForm::text;
};

// What the Python beside this program, or on PATH, says of itself. Whatever else it prints first does not count.
Json ask_for_python_facts() {
  const Json missing = {{"found", false}};
  std::string answer = ask_python(kPythonFacts).value_or("");
  while (answer.ends_with('\n'))
    answer.pop_back();
  Json facts = Json::parse(answer.substr(answer.rfind('\n') + 1), nullptr, false);
  const bool usable = facts.is_object() && facts.value("found", Json()) == true && facts.contains("version") &&
                      facts["version"].is_string() && facts.contains("packages") && facts["packages"].is_object();
  return usable ? facts : missing;
}

template <class T>
std::string show(const std::optional<T>& value, std::string_view unknown = "not told") {
  return value ? fmt::format("{}", *value) : std::string(unknown);
}

std::string show_binary(const std::optional<uint64_t>& bytes, std::string_view unknown) {
  return bytes ? show_binary_bytes(*bytes) : std::string(unknown);
}

std::string python_text(const Json& python) {
  if (python.value("found", false) != true) return "no python3 was found";
  std::vector<std::string> found, missing;
  for (const auto& [name, package] : python["packages"].items()) {
    const bool there = package.is_object() && package.value("found", Json()) == true && package.contains("version") &&
                       package["version"].is_string();
    if (!there) {
      missing.push_back(printable(name));
      continue;
    }
    std::string text = printable(fmt::format("{} {}", name, package["version"].get<std::string>()));
    if (package.contains("cuda") && package["cuda"].is_string())
      text += printable(fmt::format(" (for CUDA {})", package["cuda"].get<std::string>()));
    found.push_back(std::move(text));
  }
  std::string text = printable(python["version"].get<std::string>());
  if (!found.empty()) text += fmt::format(" with {}", fmt::join(found, ", "));
  if (!missing.empty()) text += fmt::format("; not found: {}", fmt::join(missing, ", "));
  return text;
}

std::string huge_page_text(const HugePageFacts& facts) {
  std::vector<std::string> pools;
  for (const HugePagePool& pool : facts.reserved) {
    if (pool.total_pages != 0)
      pools.push_back(fmt::format("{} free of {} of {}", show_count(pool.free_pages), show_count(pool.total_pages),
                                  show_binary_bytes(pool.page_bytes)));
  }
  return fmt::format("transparent: {}; reserved: {}", facts.transparent.empty() ? "not told" : facts.transparent,
                     pools.empty() ? "none" : fmt::format("{}", fmt::join(pools, ", ")));
}

std::string library_text(const LibraryFacts& library, const std::string& version) {
  if (library.path.empty()) return fmt::format("not found ({}); not tried: GPU support is not there yet", library.name);
  return fmt::format("found: {}{}; not tried: GPU support is not there yet", printable(library.path),
                     version.empty() ? "" : fmt::format(", kernel module {}", printable(version)));
}

void show_advice(Sheet& sheet, const std::vector<Advice>& advice) {
  for (const Advice& entry : advice) {
    sheet.fact(entry.about, printable(entry.what));
    if (!entry.remedy.empty()) sheet.more(fmt::format("To do: {}", printable(entry.remedy)));
  }
}

void show_machine(Sheet& sheet, const MachineReport& report, const Json& python) {
  const auto& [kernel, processors, memory] = std::tie(report.kernel, report.processors, report.memory);
  sheet.head(fmt::format("headrace {} on {} {} ({})", HEADRACE_VERSION, printable(kernel.name),
                         printable(kernel.release), printable(kernel.machine)));
  sheet.fact("processors",
             fmt::format("{} of {} usable{}{}", processors.allowed, processors.online,
                         processors.numa_nodes == 0 ? "" : fmt::format(", NUMA nodes: {}", processors.numa_nodes),
                         processors.model.empty() ? "" : fmt::format("; {}", printable(processors.model))));
  if (memory.total_bytes != 0) {  // else /proc is hidden
    sheet.fact("memory", fmt::format("{}, of which {} are available; pages of {}", show_bytes(memory.total_bytes),
                                     show_bytes(memory.available_bytes), show_binary_bytes(memory.page_bytes)));
  }
  sheet.fact("huge pages", huge_page_text(report.huge_pages));
  const LockedMemoryFacts& locked = report.locked_memory;
  sheet.fact("locked memory",
             locked.exempt
                 ? fmt::format("limit {}, which does not bind this user", show_binary(locked.limit_bytes, "none"))
                 : fmt::format("limit {}, can be raised to {}", show_binary(locked.limit_bytes, "none"),
                               show_binary(locked.limit_max_bytes, "any")));
  for (const EngineInfo& engine : report.engines) {
    sheet.fact(engine_name(engine.kind), fmt::format("{}: {}", engine.available ? "can be set up" : "cannot be set up",
                                                     printable(engine.reason)));
  }
  if (report.uring_disabled.value_or(0) != 0)
    sheet.fact("", fmt::format("kernel.io_uring_disabled is {}", *report.uring_disabled));
  if (report.aio.places_max)
    sheet.fact("aio places",
               fmt::format("{} of {} in use (fs.aio-nr, fs.aio-max-nr)", show_count(report.aio.places_used.value_or(0)),
                           show_count(*report.aio.places_max)));
  sheet.fact("CUDA driver", library_text(report.gpu.cuda_driver, report.gpu.driver_version));
  sheet.fact("cuFile", library_text(report.gpu.cufile, report.gpu.nvidia_fs_version));
  sheet.fact("Python", python_text(python));
  show_advice(sheet, report.advice);
}

std::string device_text(const BlockDeviceFacts& device) {
  std::vector<std::string> words;
  if (!device.model.empty()) words.push_back(printable(device.model));
  words.push_back(device.kind);
  if (device.virtual_disk.value_or(false)) words.push_back("virtual");
  if (device.rotational.value_or(false))
    words.push_back(device.virtual_disk.value_or(false) ? "calls itself rotational" : "rotational");
  if (device.size_bytes) words.push_back(show_bytes(*device.size_bytes));
  if (device.logical_sector_bytes) {
    words.push_back(fmt::format("sectors of {}", show_binary_bytes(*device.logical_sector_bytes)));
    if (device.physical_sector_bytes.value_or(0) > *device.logical_sector_bytes)
      words.back() += fmt::format(" ({} inside)", show_binary_bytes(*device.physical_sector_bytes));
  }
  if (device.queue_depth) words.push_back(fmt::format("queue of {}", *device.queue_depth));
  if (device.hardware_queues) words.push_back(fmt::format("hardware queues: {}", *device.hardware_queues));
  if (!device.scheduler.empty()) words.push_back(fmt::format("scheduler {}", printable(device.scheduler)));
  if (device.request_bytes_max) {
    words.push_back(fmt::format("requests up to {}", show_binary_bytes(*device.request_bytes_max)));
    if (device.request_segments_max) words.back() += fmt::format(" in {} pieces", *device.request_segments_max);
  }
  if (!device.write_cache.empty()) words.push_back(printable(device.write_cache));
  if (device.numa_node) words.push_back(fmt::format("NUMA node {}", *device.numa_node));
  if (!device.backing_file.empty()) words.push_back(fmt::format("file {}", printable(device.backing_file)));
  return fmt::format("{}{}: {}", device.partition.empty() ? "" : fmt::format("{} of ", printable(device.partition)),
                     printable(device.name), fmt::join(words, ", "));
}

std::string direct_text(const DirectFacts& direct) {
  if (!direct.accepted) return "refused";
  return fmt::format("accepted; addresses to {}, offsets to {}{}", show_binary_bytes(direct.memory_alignment_bytes),
                     show_binary_bytes(direct.offset_alignment_bytes),
                     direct.told ? "" : " (a safe guess: the system does not tell)");
}

// What was proved, and how the bytes went.
std::string evidence(const EngineReport& engine) {
  uint64_t bytes = 0;
  bool direct = true;
  bool registered = true;
  ReadFrom from = ReadFrom::device;
  for (const RoundTrip& trip : engine.round_trips) {
    bytes += trip.length_bytes;
    direct = direct && trip.read.direct_bytes != 0 && trip.write.direct_bytes != 0;
    registered = registered && trip.read.registered_bytes != 0;
    from = std::max(from, trip.read_from);
  }
  if (from == ReadFrom::memory) return fmt::format("{} written, read back and compared", show_bytes(bytes));
  return fmt::format("{} written, read back from the {} and compared; {}{}", show_bytes(bytes), read_from_name(from),
                     direct ? "direct" : "through the page cache", registered ? ", registered memory" : "");
}

void show_engine(Sheet& sheet, const EngineReport& engine) {
  const bool right = engine.verdict == Verdict::works || engine.verdict == Verdict::partly;
  std::string text(verdict_name(engine.verdict));
  if (right) text += fmt::format(": {}", evidence(engine));
  if (!engine.why.empty()) text += fmt::format("{}{}", right ? "; " : ": ", printable(engine.why));
  sheet.fact(engine_name(engine.engine), text);
  if (!engine.remedy.empty()) sheet.more(fmt::format("To do: {}", printable(engine.remedy)));
}

void show_folder(Sheet& sheet, const FolderReport& folder) {
  sheet.gap();
  const std::string real = folder.real_path.empty() || folder.real_path == folder.path
                               ? std::string()
                               : fmt::format(" ({})", printable(folder.real_path));
  sheet.head(printable(folder.path) + real);
  const FileSystemFacts& system = folder.file_system;
  if (!system.type.empty())
    sheet.fact("file system",
               fmt::format("{} on {}, mounted at {} ({})", printable(system.type), printable(system.source),
                           printable(system.mounted_at), printable(system.mount_options)));
  if (system.free_bytes && system.size_bytes)
    sheet.fact("space", fmt::format("{} free of {}", show_bytes(*system.free_bytes), show_bytes(*system.size_bytes)));
  for (const BlockDeviceFacts& device : folder.devices)
    sheet.fact(device.member_of.empty() ? "device" : fmt::format("in {}", printable(device.member_of)),
               device_text(device));
  if (!folder.engines.empty()) sheet.fact("direct I/O", direct_text(folder.direct));
  for (const EngineReport& engine : folder.engines)
    show_engine(sheet, engine);
  if (folder.error) {
    Error error = *folder.error;
    const std::string remedy = std::exchange(error.detail, {});
    sheet.fact("not tried", printable(error.message()));
    if (!remedy.empty()) sheet.more(fmt::format("To do: {}", printable(remedy)));
  }
  show_advice(sheet, folder.advice);
}

Exit run_report(Console& console, const Options& options) {
  Result<MachineReport> report;
  {
    ProgressBar bar(console);
    report = report_machine(options.folders, {.progress = bar.progress()});
  }
  if (!report) return report_error(console, report.error());
  const Json python = ask_for_python_facts();
  if (options.form == OutputForm::json) {
    Json all = Json::parse(to_json(*report));
    all["python"] = python;
    console.line(all.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    Sheet sheet(console);
    show_machine(sheet, *report, python);
    for (const FolderReport& folder : report->folders)
      show_folder(sheet, folder);
    if (report->folders.empty()) {
      sheet.gap();
      sheet.text("Name a folder to have every engine tried there: headrace report FOLDER");
    }
  }
  return std::ranges::all_of(report->folders, &FolderReport::usable) ? Exit::done : Exit::failed;
}

}  // namespace

Command add_report(CLI::App& program) {
  CLI::App* command = add_command(
      program, "report",
      "Show what this machine can do, and try every engine in every FOLDER.\n"
      "In a folder each engine writes 9 MB of random bytes durably, reads them back from the device and compares "
      "them. The file that this takes has no name, or loses it before it is written: nothing stays behind.");
  const auto options = std::make_shared<Options>();
  add_texts(*command, "FOLDER", options->folders, "where files are to lie; none: only the machine is looked at");
  add_json(*command, options->form);
  add_examples(*command,
               "Examples:\n"
               "  headrace report\n"
               "  headrace report /mnt/nvme0 /mnt/nvme1\n"
               "  headrace report . --json | jq '.folders[].engines[] | {engine, verdict, why}'\n\n"
               "Exit status: 1 where in some folder no engine brought its bytes back right.");
  return {command, [options](Console& console) { return run_report(console, *options); }};
}

}  // namespace headrace::cli
