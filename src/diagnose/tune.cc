// SPDX-License-Identifier: Apache-2.0
// A whole tuning: options checked, files made, the search let loose on them.
// One thread; the measurements have threads of their own while it waits.
// Owns files, memory and the handles that are open at a time.
#include <headrace/tune.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "diagnose/bench_files.h"
#include "diagnose/bench_machine.h"
#include "diagnose/bench_progress.h"
#include "diagnose/tune_search.h"
#include "diagnose/tune_space.h"

namespace headrace {
namespace {

using diagnose::TuneBounds;
using diagnose::TuneGround;
using diagnose::TuneSizing;

constexpr uint64_t kWrittenBytesDefault = 8'000'000'000;  // for each folder
constexpr uint64_t kReadBytesDefault = 11'000'000'000;
constexpr uint32_t kLoopsMax = 100;
constexpr double kSecondsMax = 86'400;

std::unexpected<Error> refused(std::string detail) {
  return std::unexpected(Error{.code = ErrorCode::invalid_argument, .operation = "tune", .detail = std::move(detail)});
}

// What the options come to.
struct Prepared {
  TuneGround ground;
  TuneBounds bounds;
  std::vector<TunePoint> points;
};

Status check(const TuneOptions& options) {
  if (options.folders.empty() || options.folders.size() > kBenchmarkFilesMax)
    return refused(fmt::format("{} folders; allowed: 1 to {}", options.folders.size(), kBenchmarkFilesMax));
  if (options.directions.empty()) return refused("neither reading nor writing is to be tuned: there is nothing to do");
  if (options.directions.size() > 2 ||
      (options.directions.size() == 2 && options.directions[0] == options.directions[1]))
    return refused("a direction is named twice");
  if (options.io_bytes < kBlockBytesMin)
    return refused(fmt::format("io_bytes is {}; allowed: {} or more", options.io_bytes, kBlockBytesMin));
  if (options.io_bytes > uint64_t{INT64_MAX} / (2 * options.folders.size()))
    return refused(fmt::format("io_bytes is {}: no disk holds that", options.io_bytes));
  if (options.loops == 0 || options.loops > kLoopsMax)
    return refused(fmt::format("loops is {}; allowed: 1 to {}", options.loops, kLoopsMax));
  if (!(options.seconds_max > 0 && options.seconds_max <= kSecondsMax))
    return refused(
        fmt::format("seconds_max is {}; allowed: more than 0, at most {}", options.seconds_max, kSecondsMax));
  for (const auto& [name, values] : {std::pair("engines", options.space.engines.size()),
                                     std::pair("sizes of blocks", options.space.block_bytes.size()),
                                     std::pair("queue depths", options.space.queue_depths.size()),
                                     std::pair("numbers of workers", options.space.workers.size()),
                                     std::pair("kinds of registering", options.space.registered.size()),
                                     std::pair("orders", options.space.orders.size()),
                                     std::pair("kinds of requests", options.space.requests.size())})
    if (values > kTunePointsMax) return refused(fmt::format("{} {}; allowed: {}", values, name, kTunePointsMax));
  for (const uint64_t block : options.space.block_bytes) {
    if (block < kBlockBytesMin || block > kBlockBytesMax || block % kBlockBytesMin != 0)
      return refused(
          fmt::format("a block of {} bytes; allowed: multiples of {} up to {}", block, kBlockBytesMin, kBlockBytesMax));
  }
  for (const uint32_t depth : options.space.queue_depths)
    if (depth == 0 || depth > kQueueDepthMax)
      return refused(fmt::format("a queue depth of {}; allowed: 1 to {}", depth, kQueueDepthMax));
  for (const uint32_t workers : options.space.workers)
    if (workers == 0 || workers > kWorkersMax)
      return refused(fmt::format("{} workers; allowed: 1 to {}", workers, kWorkersMax));
  return {};
}

Result<Prepared> prepare(const TuneOptions& options) {
  if (Status checked = check(options); !checked) return std::unexpected(std::move(checked).error());
  if (Status room = diagnose::check_room(options.folders, options.io_bytes * options.directions.size()); !room)
    return std::unexpected(std::move(room).error());
  Prepared all;
  for (const EngineInfo& engine : probe_engines())
    if (engine.available && engine.kind != EngineKind::null && engine.kind != EngineKind::automatic)
      all.ground.engines.push_back(engine.kind);
  all.ground.processors = std::max(diagnose::describe_machine().processors, 1U);
  all.ground.io_bytes = options.io_bytes;
  // Counted before they are built: a file of a few kilobytes can name more than memory holds.
  const auto too_many = [](uint64_t points) {
    return refused(fmt::format("{} combinations of settings; allowed: {}. Name fewer values", points, kTunePointsMax));
  };
  if (const uint64_t count = diagnose::count_points(options.space, all.ground); count > kTunePointsMax)
    return too_many(count);
  all.points = diagnose::points_of(options.space, all.ground);
  const Result<Handle> by_default = Handle::create();
  if (!by_default) return std::unexpected(by_default.error());
  const HandleFacts facts = by_default->facts();
  const TunePoint defaults = {facts.engine, facts.block_bytes, facts.queue_depth, facts.workers};
  std::erase(all.points, defaults);
  all.points.insert(all.points.begin(), TunePoint{});  // the same by its own name: what all is compared with
  if (all.points.size() > kTunePointsMax) return too_many(all.points.size());
  const uint64_t folders = options.folders.size();
  const auto or_default = [&](uint64_t asked, uint64_t otherwise) { return asked != 0 ? asked : otherwise * folders; };
  all.bounds = {.directions = options.directions,
                .io_bytes = options.io_bytes,
                .files = static_cast<uint32_t>(folders),
                .loops = options.loops,
                .seconds_max = options.seconds_max,
                .bytes_max = {or_default(options.read_bytes_max, kReadBytesDefault),
                              or_default(options.written_bytes_max, kWrittenBytesDefault)},
                .by_default = defaults,
                .rival = !options.rival.name.empty()};
  // Writes first, which need more than the files that are read.
  for (const IoDirection direction : {IoDirection::write, IoDirection::read}) {
    if (std::ranges::find(options.directions, direction) == options.directions.end()) continue;
    const TuneSizing sizing = diagnose::sizes_for(static_cast<uint32_t>(all.points.size()), all.bounds, direction);
    if (const uint64_t may = all.bounds.bytes_max[static_cast<size_t>(IoDirection::write)];
        sizing.least_fill_bytes > may)
      return refused(fmt::format("{} bytes may be written, and the files that are read take {}; allow more", may,
                                 sizing.least_fill_bytes));
    if (!sizing.sizes) {
      const bool reads = direction == IoDirection::read;
      return refused(
          fmt::format("{} bytes may be {}, and measuring {} combinations of settings takes {}; allow more, "
                      "or name fewer values",
                      all.bounds.bytes_max[static_cast<size_t>(direction)], reads ? "read" : "written",
                      all.points.size(), sizing.least_bytes));
    }
  }
  return all;
}

// What was learnt of a point beside its rates.
struct Seen {
  TunePoint point;
  HandleFacts handle;
  std::array<std::optional<bool>, 2> cold = {};
  std::array<std::string, 2> why = {};
};

class Bench final : public diagnose::TuneBench {
 public:
  Bench(const TuneRival& rival, const Progress& progress) : rival_(rival), progress_(progress) {}

  Status open(const TuneOptions& options) {
    for (const IoDirection direction : options.directions) {
      Result<BenchmarkFiles> files =
          BenchmarkFiles::create({.folders = options.folders, .file_bytes = options.io_bytes});
      if (!files) return std::unexpected(std::move(files).error());
      sets_[static_cast<size_t>(direction)] = std::make_unique<BenchmarkFiles>(*std::move(files));
    }
    return {};
  }

  Result<IoSample> run(const TunePoint& point, IoDirection direction, uint64_t bytes) override {
    const Result<Open*> opened = find(point, direction, bytes);
    if (!opened) return std::unexpected(opened.error());
    Result<IoSample> sample = (*opened)->benchmark.run(IoBenchmark::Count::yes, step());
    if (!sample) return sample;
    add(direction, sample->bytes);
    const IoResult result = (*opened)->benchmark.result();
    Seen& seen = seen_of(point);
    const auto side = static_cast<size_t>(direction);
    seen.handle = result.handle;
    seen.why[side] = result.why;
    if (result.cold) seen.cold[side] = seen.cold[side].value_or(true) && *result.cold;
    return sample;
  }

  void forget() override { open_.clear(); }

  Result<TuneRivalSample> run_rival(const TunePoint& point, IoDirection direction, uint64_t bytes) override {
    BenchmarkFiles& files = *sets_[static_cast<size_t>(direction)];
    TuneRivalTask task = {.direction = direction,
                          .handle = seen_of(point).handle,
                          .order = point.order,
                          .registered = point.registered != Ladder::never,
                          .bytes = bytes};
    for (uint32_t i = 0; i < files.count(); ++i)
      task.paths.push_back(files.path_for_others(i));
    Result<TuneRivalSample> sample = rival_.run(task);
    if (progress_.interrupted && progress_.interrupted()) return std::unexpected(diagnose::interrupted());
    if (!sample) return sample;
    if (direction == IoDirection::write) files.written_by_others(sample->bytes);
    add(direction, sample->bytes);
    return sample;
  }

  [[nodiscard]] double seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  void expect(uint64_t bytes) override { expected_bytes_ = bytes; }

  [[nodiscard]] Seen& seen_of(const TunePoint& point) {
    const auto found = std::ranges::find(seen_, point, &Seen::point);
    if (found != seen_.end()) return *found;
    seen_.push_back({.point = point, .handle = {}});
    return seen_.back();
  }
  [[nodiscard]] uint64_t read_bytes() const noexcept { return read_bytes_; }
  [[nodiscard]] uint64_t written_bytes() const noexcept {
    uint64_t bytes = 0;
    for (const std::unique_ptr<BenchmarkFiles>& files : sets_)
      bytes += files ? files->written_bytes() : 0;
    return bytes;
  }
  [[nodiscard]] const std::vector<BenchmarkPlace>& places() const { return (sets_[0] ? sets_[0] : sets_[1])->places(); }

 private:
  struct Open {
    TunePoint point;
    IoDirection direction;
    uint64_t bytes;
    IoBenchmark benchmark;
  };

  Result<Open*> find(const TunePoint& point, IoDirection direction, uint64_t bytes) {
    for (const std::unique_ptr<Open>& one : open_)
      if (one->point == point && one->direction == direction && one->bytes == bytes) return one.get();
    const IoSettings settings = {.direction = direction,
                                 .bytes = bytes,
                                 .engine = point.engine,
                                 .block_bytes = point.block_bytes,
                                 .queue_depth = point.queue_depth,
                                 .workers = point.workers,
                                 .registered = point.registered,
                                 .request = point.request,
                                 .order = point.order};
    const BenchmarkFiles& files = *sets_[static_cast<size_t>(direction)];
    Result<IoBenchmark> benchmark = IoBenchmark::prepare(files, settings, step());
    if (!benchmark) return std::unexpected(std::move(benchmark).error());
    open_.push_back(std::make_unique<Open>(point, direction, bytes, *std::move(benchmark)));
    return open_.back().get();
  }

  void add(IoDirection direction, uint64_t bytes) {
    done_bytes_ += bytes;
    if (direction == IoDirection::read) read_bytes_ += bytes;
  }

  // Of one measurement, whose bytes follow those of the ones before.
  Progress step() {
    Progress inner;
    inner.interrupted = progress_.interrupted;
    if (progress_.show) {
      inner.show = [this](const ProgressNow& now) {
        progress_.show({.what = now.what,
                        .done_bytes = std::min(done_bytes_ + now.done_bytes, expected_bytes_),
                        .total_bytes = expected_bytes_});
      };
    }
    return inner;
  }

  const TuneRival& rival_;
  const Progress& progress_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::array<std::unique_ptr<BenchmarkFiles>, 2> sets_;  // by direction: what is read must not be overwritten
  std::vector<std::unique_ptr<Open>> open_;
  std::vector<Seen> seen_;
  uint64_t expected_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t read_bytes_ = 0;
};

}  // namespace

Result<TunePlan> plan_tune(const TuneOptions& options) {
  const Result<Prepared> prepared = prepare(options);
  if (!prepared) return std::unexpected(prepared.error());
  const TuneBounds& bounds = prepared->bounds;
  const bool writes = std::ranges::find(bounds.directions, IoDirection::write) != bounds.directions.end();
  const bool reads = std::ranges::find(bounds.directions, IoDirection::read) != bounds.directions.end();
  TunePlan plan = {.points = static_cast<uint32_t>(prepared->points.size()),
                   .space_bytes = bounds.io_bytes * bounds.files * bounds.directions.size(),
                   .written_bytes_max = bounds.bytes_max[1],
                   .read_bytes_max = reads ? bounds.bytes_max[0] : 0,
                   .seconds_max = bounds.seconds_max};
  if (writes) return plan;
  // Only what is to be read is written, once.
  const TuneSizing sizing = diagnose::sizes_for(plan.points, bounds, IoDirection::read);
  plan.written_bytes_max = *std::ranges::max_element(sizing.sizes->bytes) * bounds.files;
  return plan;
}

Result<TuneResult> tune(const TuneOptions& options, const Progress& progress) {
  Result<Prepared> prepared = prepare(options);
  if (!prepared) return std::unexpected(std::move(prepared).error());
  Bench bench(options.rival, progress);
  if (Status opened = bench.open(options); !opened) return std::unexpected(std::move(opened).error());
  diagnose::TuneSearch search(prepared->bounds, options.space, prepared->points, bench);
  if (Status searched = search.run(); !searched) return std::unexpected(std::move(searched).error());
  TuneResult result = std::move(search.result());
  for (TunedPoint& point : result.points)
    point.handle = bench.seen_of(point.point).handle;
  const auto finish = [&](std::optional<TuneBest>& best, std::optional<TuneRivalResult>& rival, IoDirection direction) {
    if (rival) rival->name = options.rival.name;
    if (!best) return;
    const Seen& seen = bench.seen_of(result.points[best->point].point);
    best->cold = seen.cold[static_cast<size_t>(direction)];
    const std::string& why = seen.why[static_cast<size_t>(direction)];
    // Only io_uring registers memory: of the others it is no news that they do not.
    if (seen.handle.engine == EngineKind::uring || !why.starts_with("not registered")) best->why = why;
  };
  finish(result.read, result.read_rival, IoDirection::read);
  finish(result.write, result.write_rival, IoDirection::write);
  result.read_bytes = bench.read_bytes();
  result.written_bytes = bench.written_bytes();
  result.seconds = bench.seconds();
  result.io_bytes = options.io_bytes;
  result.places = bench.places();
  result.machine = diagnose::describe_machine();
  return result;
}

std::string_view tune_round_name(TuneRound round) noexcept {
  switch (round) {
    case TuneRound::first: return "first";
    case TuneRound::second: return "second";
    case TuneRound::third: return "third";
    case TuneRound::last: return "last";
  }
  return "";
}

}  // namespace headrace
