// SPDX-License-Identifier: Apache-2.0
// Finds the settings with which files are read and written fastest here: `headrace tune` and programs.
// One call at a time for each disk, or they measure each other; the call blocks, tells its progress and can be stopped.
// Results are plain values. The files have no name: they are gone when the call ends, however it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <headrace/benchmark.h>

namespace headrace {

// One combination of settings. Zeros and `automatic` are what the library chooses by itself.
struct TunePoint {
  EngineKind engine = EngineKind::automatic;
  uint64_t block_bytes = 0;
  uint32_t queue_depth = 0;
  uint32_t workers = 0;
  Ladder registered = Ladder::automatic;
  RequestOrder order = RequestOrder::overlapping;
  RequestSize request = RequestSize::file;

  friend bool operator==(const TunePoint&, const TunePoint&) = default;
};

// All combinations of these are tried. An empty list is the built-in one.
struct TuneSpace {
  std::vector<EngineKind> engines = {};     // those that work here
  std::vector<uint64_t> block_bytes = {};   // 256 KiB, 1, 4 and 16 MiB
  std::vector<uint32_t> queue_depths = {};  // 8, 32, 128
  std::vector<uint32_t> workers = {};       // 1, 2, 4 ... up to the processors, at most 8
  std::vector<Ladder> registered = {};      // automatic
  std::vector<RequestOrder> orders = {};    // overlapping
  std::vector<RequestSize> requests = {};   // whole files
};

inline constexpr uint32_t kTunePointsMax = 1024;

// Another program that does the same on the same file, in turn with the best settings: fio.
struct TuneRivalTask {
  IoDirection direction = IoDirection::read;
  HandleFacts handle = {};  // what is to be done as headrace does it
  RequestOrder order = RequestOrder::overlapping;
  bool registered = true;
  uint64_t bytes = 0;                   // from the start of each file
  std::vector<std::string> paths = {};  // which can be opened while the call lasts
};
struct TuneRivalSample {
  double seconds = 0;
  double cpu_seconds = 0;
  uint64_t bytes = 0;
  std::string note = {};  // what a reader of the comparison should know
};
struct TuneRival {
  std::string name = {};  // empty: there is none
  std::function<Result<TuneRivalSample>(const TuneRivalTask&)> run = {};
};

struct TuneOptions {
  std::vector<std::string> folders = {};  // a file in each, all at once
  std::vector<IoDirection> directions = {IoDirection::read, IoDirection::write};
  TuneSpace space = {};
  // At most that much of each file is moved in one repeat; less where the budget asks for it.
  uint64_t io_bytes = uint64_t{400} << 20;
  uint32_t loops = 1;              // repeats of each point in the first round, 1..100
  double seconds_max = 60;         // what is not measured by then is left out
  uint64_t written_bytes_max = 0;  // of everything, rival and preparation included; 0: 8 GB for each folder
  uint64_t read_bytes_max = 0;     // 0: 11 GB for each folder
  TuneRival rival = {};
};

// What a call will do at most, known before it begins.
struct TunePlan {
  uint32_t points = 0;
  uint64_t space_bytes = 0;  // of the disks, until it ends
  uint64_t written_bytes_max = 0;
  uint64_t read_bytes_max = 0;
  double seconds_max = 0;
};

enum class TuneRound : uint8_t { first, second, third, last };

// The repeats of a point in one round.
struct TuneRepeats {
  TuneRound round = TuneRound::first;
  uint64_t bytes = 0;  // of each repeat, all files together
  std::vector<double> gb_per_s = {};
  std::vector<double> cpu_seconds_per_gb = {};
};

struct TuneTrack {  // a point in one direction
  std::vector<TuneRepeats> rounds = {};
  std::optional<Error> error = {};  // why it could not be measured (any more)
};

struct TunedPoint {
  TunePoint point = {};
  bool is_default = false;             // the library's defaults
  HandleFacts handle = {};             // what they come to
  std::optional<TuneTrack> read = {};  // none: not measured in this direction
  std::optional<TuneTrack> write = {};
};

// The best settings in one direction and how they stand beside others.
struct TuneBest {
  uint32_t point = 0;                  // of TuneResult::points
  TuneRound round = TuneRound::first;  // that the rates are of: the last in which all that were left had a turn
  bool confirmed = false;              // the last round, with all of its repeats
  Spread gb_per_s = {};
  Spread cpu_seconds_per_gb = {};
  std::optional<double> by_default = {};  // its rate by that of the library's defaults
  std::optional<bool> cold = {};          // reads: nothing came from the page cache
  std::string why = {};                   // why not the faster route; empty when there was none
};

struct TuneRivalResult {
  std::string name;
  std::vector<double> gb_per_s = {};
  std::vector<double> cpu_seconds_per_gb = {};
  std::vector<double> headrace_gb_per_s = {};  // with the best settings, in turn with it
  std::string note = {};                       // TuneRivalSample::note
  std::string why_not = {};                    // why it did not run (any more)
};

struct TuneBoth {
  uint32_t point = 0;
  double read_gb_per_s = 0;
  double write_gb_per_s = 0;
};

struct TuneResult {
  std::vector<TunedPoint> points;
  std::optional<TuneBest> read;
  std::optional<TuneBest> write;
  std::optional<TuneBoth> both;  // the greatest sum of both rates; none where one direction was left out
  std::optional<TuneRivalResult> read_rival;
  std::optional<TuneRivalResult> write_rival;
  bool interrupted = false;  // by Progress: what was known then
  bool out_of_time = false;  // seconds_max cut something short
  std::string complaint;     // why it ended early; empty when it did not
  uint64_t read_bytes = 0;   // the traffic of the whole call
  uint64_t written_bytes = 0;
  double seconds = 0;
  uint64_t io_bytes = 0;
  std::vector<BenchmarkPlace> places;
  BenchmarkMachine machine;
};

// ErrorCode::invalid_argument where the options make no sense, or where the bytes allowed are too few to measure all points.
[[nodiscard]] HEADRACE_EXPORT Result<TunePlan> plan_tune(const TuneOptions& options);

// In rounds, each with fewer points and larger repeats; reads and writes apart, the points of a round in turn. A point that
// fails is recorded and left out. Stopped by `progress`, it returns what is known, or ErrorCode::interrupted when that is nothing.
[[nodiscard]] HEADRACE_EXPORT Result<TuneResult> tune(const TuneOptions& options, const Progress& progress = {});

// docs/schema/tune.json describes it.
[[nodiscard]] HEADRACE_EXPORT std::string to_json(const TuneResult& result);

[[nodiscard]] HEADRACE_EXPORT std::string_view tune_round_name(TuneRound round) noexcept;  // "first", "second", ...

}  // namespace headrace
