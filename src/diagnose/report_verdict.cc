// SPDX-License-Identifier: Apache-2.0
// From round trips to a verdict: what went wrong, else what was slower than it could be, and what to do about it.
// Any thread: pure.
// Owns nothing.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "diagnose/report_system.h"
#include "diagnose/report_trial.h"

namespace headrace::diagnose {
namespace {

void add(EngineReport& report, std::string_view why, std::string_view remedy) {
  report.verdict = Verdict::partly;
  if (!report.why.empty()) report.why += "; ";
  report.why += why;
  if (!report.remedy.empty() && !remedy.empty()) report.remedy += "; ";
  report.remedy += remedy;
}

void judge_direct(EngineReport& report, const FolderReport& folder) {
  if (folder.file_system.in_memory) {
    report.why = "in memory: no device lies below this file system";
    return;
  }
  const auto went_direct = [](const RoundTrip& trip) {
    return trip.write.direct_bytes != 0 && trip.read.direct_bytes != 0;
  };
  if (std::ranges::all_of(report.round_trips, went_direct)) return;
  std::string words;
  for (const RoundTrip& trip : report.round_trips) {
    if (went_direct(trip)) continue;
    words = trip.read.direct_bytes == 0 ? trip.read.why : trip.write.why;
    break;
  }
  add(report, words.empty() ? "direct I/O was not used" : words,
      "bytes go through the page cache here, at more CPU; use a file system with direct I/O (ext4, XFS, ...) for "
      "speed");
}

// Blocks that go through the page cache have no use for registered memory.
void judge_registration(EngineReport& report, const LockedMemoryFacts& locked) {
  if (report.engine != EngineKind::uring) return;  // the others have none
  const auto lacks = [&](std::string_view shape) {
    return std::ranges::any_of(report.round_trips, [shape](const RoundTrip& trip) {
      return trip.shape == shape && ((trip.read.direct_bytes != 0 && trip.read.registered_bytes == 0) ||
                                     (trip.write.direct_bytes != 0 && trip.write.registered_bytes == 0));
    });
  };
  const bool buffer = lacks("buffer");
  const bool staging = lacks("bulk");
  if (!buffer && !staging) return;
  if (report.detail.find("no registered memory") != std::string::npos) {
    add(report, "this kernel registers no memory with the ring", "Linux 5.19 or later does, for less CPU");
    return;
  }
  const char* const what = !staging ? "a Buffer" : buffer ? "memory" : "staging memory";
  add(report, fmt::format("{} could not be registered with the ring", what),
      locked.exempt ? "the kernel was short of memory"
                    : fmt::format("raise the limit on locked memory (`ulimit -l`, now {}) for less CPU",
                                  limit_text(locked.limit_bytes)));
}

void judge_size(EngineReport& report, const HandleFacts& facts, const HandleFacts& best) {
  const std::string remedy = report.engine == EngineKind::aio ? "raise fs.aio-max-nr (`sysctl fs.aio-max-nr=1048576`)"
                                                              : "raise the limits on memory, threads and open files";
  if (facts.queue_depth < best.queue_depth)
    add(report, fmt::format("{} blocks in flight per worker, not {}", facts.queue_depth, best.queue_depth), remedy);
  if (facts.workers < best.workers) {
    // Said once.
    add(report, fmt::format("{} of {} workers started", facts.workers, best.workers),
        facts.queue_depth < best.queue_depth ? std::string() : remedy);
  }
}

}  // namespace

void judge(EngineReport& report, const FolderReport& folder, const LockedMemoryFacts& locked, const HandleFacts& facts,
           const HandleFacts& best) {
  report.verdict = Verdict::failed;
  if (report.round_trips.empty()) {
    report.why = "nothing was moved";
    return;
  }
  if (const auto bad = std::ranges::find(report.round_trips, false, &RoundTrip::bytes_right);
      bad != report.round_trips.end()) {
    Error error = bad->error.value_or(Error{.operation = "round trip"});
    report.remedy = std::exchange(error.detail, {});
    report.why = fmt::format("{}: {}", bad->shape, error.message());
    return;
  }
  report.verdict = Verdict::works;
  judge_direct(report, folder);
  judge_registration(report, locked);
  judge_size(report, facts, best);
}

}  // namespace headrace::diagnose
