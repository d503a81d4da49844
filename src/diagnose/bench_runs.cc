// SPDX-License-Identifier: Apache-2.0
// Whole benchmarks: warm-ups and repeats of one setting, and of all engines in turn.
// One thread.
// Owns nothing beyond a call.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "diagnose/bench_io.h"

namespace headrace {
namespace {

using Count = IoBenchmark::Count;

Status check_repeats(const IoSettings& settings) {
  if (settings.repeats != 0 && settings.repeats <= kBenchmarkRepeatsMax && settings.warm_ups <= kBenchmarkRepeatsMax)
    return {};
  return std::unexpected(
      Error{.code = ErrorCode::invalid_argument,
            .operation = "benchmark",
            .detail = fmt::format("{} repeats after {} warm-ups; allowed: 1 to {} after at most {}", settings.repeats,
                                  settings.warm_ups, kBenchmarkRepeatsMax, kBenchmarkRepeatsMax)});
}

Count counts(const IoSettings& settings, uint32_t round) {
  return round < settings.warm_ups ? Count::warm_up : Count::yes;
}

// What concerns this engine alone; all else would be no better with the next one.
bool is_about_engine(const Error& error) {
  return error.code != ErrorCode::interrupted && error.code != ErrorCode::corrupt &&
         error.code != ErrorCode::invalid_argument && error.errno_value != ENOSPC;
}

// All engines in all directions, ready to be measured in turn.
class Contest {
 public:
  Contest(const BenchmarkFiles& files, const EnginesOptions& options, const Progress& progress)
      : files_(files), options_(options), progress_(progress) {}

  Result<std::vector<EngineRow>> run() {
    for (const IoDirection direction : options_.directions) {
      for (const EngineKind engine : options_.engines) {
        if (Status added = add(engine, direction); !added) return std::unexpected(std::move(added).error());
      }
    }
    const uint32_t rounds = options_.settings.warm_ups + options_.settings.repeats;
    diagnose::ProgressMeter meter(progress_, total_bytes(rounds));
    for (Contender& contender : contenders_) {
      if (!contender.benchmark) continue;
      if (Status ready = contender.benchmark->make_ready(meter); !ready) {
        if (Status left = out(contender, std::move(ready).error()); !left)
          return std::unexpected(std::move(left).error());
      }
    }
    for (uint32_t round = 0; round < rounds; ++round) {
      if (Status played = play(round, meter); !played) return std::unexpected(std::move(played).error());
    }
    std::vector<EngineRow> rows;
    for (Contender& contender : contenders_) {
      Result<IoResult> result = std::unexpected(contender.error);
      if (contender.benchmark) result = contender.benchmark->result();
      rows.push_back({.engine = contender.engine, .direction = contender.direction, .result = std::move(result)});
    }
    return rows;
  }

 private:
  struct Contender {
    EngineKind engine;
    IoDirection direction;
    std::unique_ptr<IoBenchmark::Impl> benchmark;  // null once it has failed
    Error error = {};
  };

  Status add(EngineKind engine, IoDirection direction) {
    IoSettings settings = options_.settings;
    settings.engine = engine;
    settings.direction = direction;
    if (engine == EngineKind::null) settings.validate = Validate::no;
    contenders_.push_back({.engine = engine,
                           .direction = direction,
                           .benchmark = std::make_unique<IoBenchmark::Impl>(files_.internal(), settings)});
    Status opened = contenders_.back().benchmark->open_handles();
    return opened ? opened : out(contenders_.back(), std::move(opened).error());
  }

  // The next ones go on without it, unless they would meet the same.
  static Status out(Contender& contender, Error error) {
    if (!is_about_engine(error)) return std::unexpected(std::move(error));
    contender.benchmark.reset();
    contender.error = std::move(error);
    return {};
  }

  [[nodiscard]] uint64_t total_bytes(uint32_t rounds) const {
    uint64_t missing_bytes = 0;  // what one has filled is there for the others
    uint64_t moved_bytes = 0;
    for (const Contender& contender : contenders_) {
      if (!contender.benchmark || contender.engine == EngineKind::null) continue;
      missing_bytes = std::max(missing_bytes, contender.benchmark->missing_bytes());
      moved_bytes += rounds * contender.benchmark->repeat_bytes();
    }
    return missing_bytes + moved_bytes;
  }

  Status play(uint32_t round, diagnose::ProgressMeter& meter) {
    // Whoever always came after the same one might always find the device in the same state.
    std::vector<size_t> order(contenders_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::shuffle(order, random_);
    for (const size_t i : order) {
      Contender& contender = contenders_[i];
      if (!contender.benchmark) continue;
      Result<IoSample> sample = contender.benchmark->run(counts(options_.settings, round), meter);
      if (sample) continue;
      if (Status left = out(contender, std::move(sample).error()); !left) return left;
    }
    return {};
  }

  const BenchmarkFiles& files_;
  const EnginesOptions& options_;
  const Progress& progress_;
  std::vector<Contender> contenders_;
  std::mt19937_64 random_{20'261};  // fixed: two calls take the contenders in the same order
};

}  // namespace

Result<IoResult> benchmark_io(const BenchmarkFiles& files, const IoSettings& settings, const Progress& progress) {
  if (Status usable = check_repeats(settings); !usable) return std::unexpected(std::move(usable).error());
  IoBenchmark::Impl benchmark(files.internal(), settings);
  if (Status opened = benchmark.open_handles(); !opened) return std::unexpected(std::move(opened).error());
  const uint32_t rounds = settings.warm_ups + settings.repeats;
  diagnose::ProgressMeter meter(progress, benchmark.missing_bytes() + rounds * benchmark.repeat_bytes());
  if (Status ready = benchmark.make_ready(meter); !ready) return std::unexpected(std::move(ready).error());
  for (uint32_t round = 0; round < rounds; ++round) {
    const Result<IoSample> sample = benchmark.run(counts(settings, round), meter);
    if (!sample) return std::unexpected(sample.error());
  }
  return benchmark.result();
}

Result<std::vector<EngineRow>> benchmark_engines(const BenchmarkFiles& files, const EnginesOptions& options,
                                                 const Progress& progress) {
  if (Status usable = check_repeats(options.settings); !usable) return std::unexpected(std::move(usable).error());
  return Contest(files, options, progress).run();
}

}  // namespace headrace
