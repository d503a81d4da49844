// SPDX-License-Identifier: Apache-2.0
// A setting made ready: handles, memory, and the counters that tell what the timed parts did.
// One thread at a time; each pass over a file runs on a thread of its own while run() waits for it.
// Owns its handles; shares files and memory with other measurements on the same set.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <headrace/benchmark.h>

#include "base/latency_histogram.h"
#include "diagnose/bench_drive.h"
#include "diagnose/bench_files.h"
#include "diagnose/bench_machine.h"
#include "diagnose/bench_progress.h"

namespace headrace {

struct Passes;

class IoBenchmark::Impl {
 public:
  Impl(std::shared_ptr<BenchmarkFiles::Impl> files, const IoSettings& settings)
      : files_(std::move(files)), settings_(settings), machine_(diagnose::describe_machine()) {}

  // Checks the settings and makes the handles: see IoBenchmark::prepare.
  [[nodiscard]] Status open_handles();
  // What make_ready() is going to write.
  [[nodiscard]] uint64_t missing_bytes() const;
  // What takes longer: touches the memory, and fills files that are to be read.
  [[nodiscard]] Status make_ready(diagnose::ProgressMeter& meter);

  [[nodiscard]] Result<IoSample> run(Count count, diagnose::ProgressMeter& meter);
  [[nodiscard]] uint64_t repeat_bytes() const noexcept { return settings_.bytes * settings_.files_at_once; }
  [[nodiscard]] IoResult result() const;

 private:
  // What is done once for each of the files that are in use at once.
  struct Lane {
    Handle handle;
    Region memory;
  };
  struct Counters {
    DirectionStats sums;
    base::LatencyHistogram::Counts latencies = {};
  };

  [[nodiscard]] Status take_memory(diagnose::ProgressMeter& meter);
  [[nodiscard]] Result<IoSample> prepare_repeat(uint64_t key, diagnose::ProgressMeter& meter);
  [[nodiscard]] Status time(IoSample& sample, diagnose::ProgressMeter& meter);
  [[nodiscard]] Status wait_for(Passes& passes, uint64_t device_before, diagnose::ProgressMeter& meter) const;
  [[nodiscard]] diagnose::Pass pass_of(uint32_t lane);
  [[nodiscard]] Status check_counted(const Counters& before, const Counters& after) const;
  [[nodiscard]] Status validate(uint64_t key, diagnose::ProgressMeter& meter);
  [[nodiscard]] Status validate_read(uint32_t lane, diagnose::ProgressMeter& meter);
  [[nodiscard]] Status validate_written(uint32_t lane, uint64_t key, diagnose::ProgressMeter& meter);
  [[nodiscard]] Counters counters() const;
  [[nodiscard]] uint64_t device_bytes_now() const;
  [[nodiscard]] uint32_t file_of(uint32_t lane) const noexcept { return first_file_ + lane; }
  [[nodiscard]] bool reads() const noexcept { return settings_.direction == IoDirection::read; }
  [[nodiscard]] bool moves_bytes() const noexcept { return settings_.engine != EngineKind::null; }
  [[nodiscard]] BenchmarkFiles::Impl::Need need() const noexcept {
    return validates() ? BenchmarkFiles::Impl::Need::known_bytes : BenchmarkFiles::Impl::Need::any_bytes;
  }
  [[nodiscard]] bool validates() const noexcept { return settings_.validate == Validate::all_bytes; }

  std::shared_ptr<BenchmarkFiles::Impl> files_;
  IoSettings settings_;
  BenchmarkMachine machine_;
  HandleFacts facts_;
  Buffer memory_;
  std::vector<Lane> lanes_;
  uint32_t first_file_ = 0;  // of those that this repeat uses
  uint32_t turn_ = 0;
  std::vector<IoSample> samples_;
  Counters totals_;
  std::string why_;
  std::optional<bool> cold_;  // of the counted repeats so far
  uint64_t validated_bytes_ = 0;
};

}  // namespace headrace
