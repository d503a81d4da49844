// SPDX-License-Identifier: Apache-2.0
// The machine first, then folder after folder; what fails in one is written down there.
// Any thread.
// Owns nothing.
#include <headrace/report.h>

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "diagnose/report_folder.h"
#include "diagnose/report_system.h"
#include "diagnose/report_trial.h"
#include "os/error.h"

namespace headrace {
namespace {

using diagnose::KernelFolders;

void advise_on_folder(FolderReport& folder) {
  const FileSystemFacts& system = folder.file_system;
  if (system.in_memory) {
    folder.advice.push_back({.about = "in memory",
                             .what = fmt::format("{} keeps files in memory: they are gone after a restart, and rates "
                                                 "measured here say nothing about a disk.",
                                                 system.type),
                             .remedy = {}});
  }
  for (const BlockDeviceFacts& device : folder.devices) {
    if (!device.backing_file.empty()) {
      folder.advice.push_back({.about = "loop device",
                               .what = fmt::format("{} is the file {}: bytes pass through two file systems.",
                                                   device.name, device.backing_file),
                               .remedy = "For rates of the disk, name a folder that lies on it directly."});
    }
  }
}

Status report_folder(const KernelFolders& kernel, const MachineReport& machine, const ReportOptions& options,
                     FolderReport& folder) {
  if (Status described = diagnose::describe_folder(kernel, folder); !described) return described;
  advise_on_folder(folder);
  diagnose::TrialOptions trial = {.patience = std::chrono::nanoseconds(options.patience_ns),
                                  .before_each = {},
                                  .interrupted = options.progress.interrupted};
  if (options.progress.show) {
    trial.before_each = [&](EngineKind engine) {
      options.progress.show({.what = fmt::format("trying {} in {}", engine_name(engine), folder.path)});
    };
  }
  return diagnose::try_engines(folder, machine.locked_memory, trial);
}

}  // namespace

std::string_view verdict_name(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::works: return "works";
    case Verdict::partly: return "partly";
    case Verdict::failed: return "failed";
    case Verdict::not_tried: return "not tried";
  }
  return "unknown";
}

std::string_view read_from_name(ReadFrom from) noexcept {
  switch (from) {
    case ReadFrom::device: return "device";
    case ReadFrom::page_cache: return "page cache";
    case ReadFrom::memory: return "memory";
  }
  return "unknown";
}

bool FolderReport::usable() const noexcept {
  return std::ranges::any_of(engines, [](const EngineReport& engine) {
    return engine.verdict == Verdict::works || engine.verdict == Verdict::partly;
  });
}

Result<MachineReport> report_machine(std::span<const std::string> folders, const ReportOptions& options) {
  try {
    const KernelFolders kernel;
    if (options.progress.show) options.progress.show({.what = "looking at the machine"});
    MachineReport report = diagnose::describe_machine(kernel);
    for (const std::string& path : folders) {
      FolderReport& folder = report.folders.emplace_back();
      folder.path = path;
      Status reported = report_folder(kernel, report, options, folder);
      if (reported) continue;
      if (reported.error().code == ErrorCode::interrupted) return std::unexpected(std::move(reported).error());
      folder.error = std::move(reported).error();
      if (!path.empty()) folder.error->path = path;
    }
    return report;
  } catch (const std::bad_alloc&) {
    return std::unexpected(os::system_error("report", {}, ENOMEM));
  }
}

}  // namespace headrace
