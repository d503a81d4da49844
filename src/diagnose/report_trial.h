// SPDX-License-Identifier: Apache-2.0
// Tries the engines in one folder with real bytes, through the public Handle, as a program of default settings would use it.
// One thread; blocks until all is tried.
// Memory given to transfers that never end stays alive with them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <headrace/handle.h>
#include <headrace/report.h>

namespace headrace::diagnose {

struct TrialOptions {
  std::chrono::nanoseconds patience = std::chrono::seconds(10);  // of the whole folder
  std::function<void(EngineKind)> before_each = {};
  std::function<bool()> interrupted = {};
};

// Fills in `direct` and `engines`; `real_path`, `file_system` and the machine's `locked` are known. An error when there is no file
// to try with, or ErrorCode::interrupted.
[[nodiscard]] Status try_engines(FolderReport& folder, const LockedMemoryFacts& locked, const TrialOptions& options);

// What the round trips and what the handle settled on amount to; `best` is what a handle gets where nothing is refused.
void judge(EngineReport& report, const FolderReport& folder, const LockedMemoryFacts& locked, const HandleFacts& facts,
           const HandleFacts& best);

}  // namespace headrace::diagnose
