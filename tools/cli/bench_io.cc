// SPDX-License-Identifier: Apache-2.0
// `headrace bench io`: one setting, with fio beside it on the same files.
// One thread.
// Owns its options.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench_io_options.h"
#include "bench_peer.h"
#include "signals.h"
#include "units.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

// Another program's side of the comparison.
struct Rival {
  std::string name;
  std::unique_ptr<Peer> peer;  // null: `why_not` tells why, or it was not asked for
  std::string why_not;
  std::vector<double> gb_per_s;
  std::vector<double> cpu_seconds_per_gb;
  std::vector<double> ratios;  // headrace's rate by its rate, within one round
};

struct Measured {
  IoResult result;
  std::vector<Rival> rivals;
};

double rate_of(uint64_t bytes, double seconds) { return static_cast<double>(bytes) / 1e9 / seconds; }

class IoRun {
 public:
  IoRun(Console& console, const BenchIoOptions& options) : console_(console), options_(options) {}

  Exit run() {
    Result<BenchmarkFiles> files = open_files();
    if (!files) return failed(files.error());
    files_ = std::make_unique<BenchmarkFiles>(*std::move(files));
    std::vector<IoDirection> directions;
    if (options_.writes()) directions.push_back(IoDirection::write);
    if (options_.reads()) directions.push_back(IoDirection::read);
    announce(directions);
    TotalProgress progress(console_, total_bytes(directions));
    for (const IoDirection direction : directions) {
      if (Status done = measure(direction, progress); !done) return failed(done.error());
    }
    return finish();
  }

 private:
  Result<BenchmarkFiles> open_files() const {
    if (!options_.files.empty())
      return BenchmarkFiles::open_existing(options_.files,
                                           options_.yes ? BlockDevice::may_be_read : BlockDevice::refuse);
    return BenchmarkFiles::create({.folders = options_.folders,
                                   .file_bytes = options_.io.io_bytes,
                                   .files_per_folder = options_.files_per_folder()});
  }

  // headrace itself, and fio where it is to run.
  uint64_t sides() const { return options_.fio == Wanted::no ? 1 : 2; }
  // What is written into the files before they are read. What was written by a measurement need not be.
  uint64_t filling_bytes(const std::vector<IoDirection>& directions) const {
    const bool filled = directions.back() != IoDirection::read || (directions.size() == 2 && !options_.io.validate);
    const bool nothing = files_->existing() || options_.io.settings.engine == EngineKind::null;
    return filled || nothing ? 0 : files_->file_bytes() * files_->count();
  }

  // What a benchmark costs is known before it begins: SSDs wear.
  void announce(const std::vector<IoDirection>& directions) const {
    if (files_->existing() || options_.io.settings.engine == EngineKind::null) return;
    uint64_t bytes = filling_bytes(directions);
    if (directions.front() == IoDirection::write) bytes += options_.rounds() * options_.repeat_bytes(*files_) * sides();
    console_.note(fmt::format("headrace: writes {}{} in all, and takes {} of space until it ends",
                              sides() == 1 ? "" : "up to ", show_bytes(bytes),
                              show_bytes(files_->file_bytes() * files_->count())));
  }

  uint64_t total_bytes(const std::vector<IoDirection>& directions) const {
    return filling_bytes(directions) + directions.size() * options_.rounds() * options_.repeat_bytes(*files_) * sides();
  }

  Status measure(IoDirection direction, TotalProgress& progress) {
    IoSettings settings = options_.settings(*files_);
    settings.direction = direction;
    writing_ = direction == IoDirection::write;
    const uint64_t written_before = files_->written_bytes();
    Result<IoBenchmark> benchmark = IoBenchmark::prepare(*files_, settings, progress.progress());
    if (!benchmark) return std::unexpected(std::move(benchmark).error());
    progress.add(files_->written_bytes() - written_before);
    std::vector<Rival> rivals = find_rivals(benchmark->result());
    Status status;
    for (uint32_t round = 0; status && round < options_.rounds(); ++round)
      status = play(*benchmark, rivals, round, progress);
    IoResult result = benchmark->result();
    if (!result.samples.empty()) measured_.push_back({.result = std::move(result), .rivals = std::move(rivals)});
    return status;
  }

  // In even rounds headrace comes first, in odd ones the others.
  Status play(IoBenchmark& benchmark, std::vector<Rival>& rivals, uint32_t round, TotalProgress& progress) {
    const bool counts = round >= options_.warm_ups();
    const auto paths = paths_of(round);
    std::vector<PeerSample> samples(rivals.size());
    const auto others = [&] {
      for (size_t i = 0; i < rivals.size(); ++i)
        samples[i] = run_rival(rivals[i], paths, progress);
    };
    if (round % 2 == 1) others();
    const Result<IoSample> ours =
        benchmark.run(counts ? IoBenchmark::Count::yes : IoBenchmark::Count::warm_up, progress.progress());
    if (!ours) return std::unexpected(ours.error());
    progress.add(ours->bytes);
    if (round % 2 == 0) others();
    if (stopped())
      return std::unexpected(
          Error{.code = ErrorCode::interrupted, .operation = "benchmark", .detail = "the benchmark was interrupted"});
    for (size_t i = 0; counts && i < rivals.size(); ++i) {
      if (samples[i].bytes == 0) continue;
      const double rate = rate_of(samples[i].bytes, samples[i].seconds);
      rivals[i].gb_per_s.push_back(rate);
      rivals[i].cpu_seconds_per_gb.push_back(samples[i].cpu_seconds / (static_cast<double>(samples[i].bytes) / 1e9));
      rivals[i].ratios.push_back(rate_of(ours->bytes, ours->seconds) / rate);
    }
    return {};
  }

  std::vector<Rival> find_rivals(const IoResult& prepared) const {
    std::vector<Rival> rivals;
    if (options_.fio == Wanted::no || prepared.handle.engine == EngineKind::null) return rivals;
    const PeerTask task = {.direction = prepared.settings.direction,
                           .engine = prepared.handle.engine,
                           .block_bytes = prepared.handle.block_bytes,
                           .queue_depth = prepared.handle.queue_depth,
                           .workers = prepared.handle.workers,
                           .order = prepared.settings.order,
                           .direct = prepared.settings.direct != Ladder::never,
                           .registered = prepared.settings.registered != Ladder::never,
                           .durable = prepared.settings.durability == Durability::data,
                           .drop_page_cache = prepared.settings.cache == CacheBefore::drop,
                           .bytes = prepared.settings.bytes,
                           .files = prepared.settings.files_at_once};
    std::expected<std::unique_ptr<Peer>, std::string> fio = find_fio(task);
    rivals.push_back({.name = "fio", .peer = nullptr, .why_not = fio ? "" : fio.error()});
    if (fio) rivals.back().peer = *std::move(fio);
    if (std::expected<std::unique_ptr<Peer>, std::string> gdsio = find_gdsio(task))
      rivals.push_back({.name = "gdsio", .peer = *std::move(gdsio), .why_not = {}});
    return rivals;
  }

  // One that fails is out, with its reason; headrace goes on.
  PeerSample run_rival(Rival& rival, const std::vector<std::string>& paths, TotalProgress& progress) {
    if (!rival.peer || stopped()) return {};
    const std::expected<PeerSample, std::string> sample = rival.peer->run(paths, [&] { progress.tick(rival.name); });
    if (!sample) {
      if (stopped()) return {};
      rival.why_not = sample.error();
      rival.peer.reset();
      return {};
    }
    if (writing_) files_->written_by_others(sample->bytes);
    progress.add(sample->bytes);
    return *sample;
  }

  std::vector<std::string> paths_of(uint32_t round) const {
    const uint32_t at_once = options_.files_at_once(*files_);
    std::vector<std::string> paths;
    for (uint32_t i = 0; i < at_once; ++i)
      paths.push_back(files_->path_for_others((round * at_once + i) % files_->count()));
    return paths;
  }

  Exit failed(const Error& error) {
    if (error.code == ErrorCode::interrupted) {
      for (const Measured& one : measured_)
        console_.note(fmt::format("headrace: {} repeats of {} were done: {} GB/s", one.result.samples.size(),
                                  direction_name(one.result.settings.direction), show_spread(one.result.gb_per_s, 2)));
    }
    Error told = error;
    if (error.code == ErrorCode::invalid_argument && !options_.yes && error.detail.contains("block device"))
      told.detail += "; --yes says so";
    return error.code == ErrorCode::invalid_argument ? report_usage(console_, told.message())
                                                     : report_error(console_, told);
  }

  Exit finish();
  void print_text() const;
  void print_json() const;
  void print_ds_io_lines(const IoResult& result) const;

  Console& console_;
  const BenchIoOptions& options_;
  std::unique_ptr<BenchmarkFiles> files_;
  std::vector<Measured> measured_;
  bool writing_ = false;  // the measurement under way
};

void IoRun::print_text() const {
  const IoResult& first = measured_.front().result;
  std::string places;
  for (const BenchmarkPlace& place : first.places)
    places += (places.empty() ? "" : ", ") + show_place(place);
  console_.line(fmt::format("{} of {}, {} repeats", show_size(first.settings.bytes * first.settings.files_at_once),
                            places, first.samples.size()));
  for (const Measured& one : measured_) {
    console_.line();
    console_.line(fmt::format("{}: {}", direction_name(one.result.settings.direction), show_settings(one.result)));
    Table table(
        {{""}, {"GB/s", Align::right}, {"min", Align::right}, {"max", Align::right}, {"cpu-s/GB", Align::right}});
    const auto row = [&](const std::string& name, const Spread& rate, const Spread& cost) {
      table.row({name, fmt::format("{:.2f}", rate.median), fmt::format("{:.2f}", rate.min),
                 fmt::format("{:.2f}", rate.max), cost.median > 0 ? fmt::format("{:.4f}", cost.median) : "-"});
    };
    row("headrace", one.result.gb_per_s, one.result.cpu_seconds_per_gb);
    for (const Rival& rival : one.rivals) {
      if (!rival.gb_per_s.empty()) row(rival.name, spread_of(rival.gb_per_s), spread_of(rival.cpu_seconds_per_gb));
    }
    table.print(console_);
    for (const Rival& rival : one.rivals) {
      if (!rival.ratios.empty())
        console_.line(fmt::format("  headrace / {}: {}", rival.name, show_spread(spread_of(rival.ratios), 3)));
      if (rival.peer && !rival.peer->note().empty()) console_.line(fmt::format("    {}", rival.peer->note()));
      if (!rival.why_not.empty()) console_.line(fmt::format("  {}", rival.why_not));
    }
    print_facts(console_, one.result);
  }
  if (!options_.ds_io_lines) return;
  console_.line();
  for (const Measured& one : measured_)
    print_ds_io_lines(one.result);
}

// All repeats together, as there; a GB is 2^30 bytes there.
void IoRun::print_ds_io_lines(const IoResult& result) const {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const char* const direction = result.settings.direction == IoDirection::read ? "Read" : "Write";
  double task = 0;
  double whole = 0;
  uint64_t bytes = 0;
  for (const IoSample& sample : result.samples) {
    task += sample.transfer_seconds;
    whole += sample.seconds;
    bytes += sample.bytes;
  }
  for (const auto& [name, seconds] : {std::pair("Task", task), std::pair("E2E", whole)}) {
    console_.line(fmt::format("{} {} Latency = {} sec", name, direction, seconds));
    console_.line(fmt::format("{} {} Speed = {} GB/sec", name, direction, static_cast<double>(bytes) / kGiB / seconds));
  }
}

Json spread_object(const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  return {{"count", spread.count}, {"median", spread.median}, {"min", spread.min},  {"max", spread.max},
          {"low", spread.low},     {"high", spread.high},     {"sure", spread.sure}};
}

Json rival_object(const Rival& rival) {
  const bool ran = !rival.gb_per_s.empty();
  const auto text = [](const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); };
  return {
      {"version", text(rival.peer ? rival.peer->version() : "")},
      {"command", rival.peer ? Json(rival.peer->command()) : Json(nullptr)},
      {"gb_per_s", ran ? spread_object(rival.gb_per_s) : Json(nullptr)},
      // In a short run it counts none: that is not nothing.
      {"cpu_seconds_per_gb",
       ran && spread_of(rival.cpu_seconds_per_gb).median > 0 ? spread_object(rival.cpu_seconds_per_gb) : Json(nullptr)},
      {"samples_gb_per_s", rival.gb_per_s},
      {"headrace_by_it", ran ? spread_object(rival.ratios) : Json(nullptr)},
      {"note", text(rival.peer ? rival.peer->note() : "")},
      {"why_not", text(rival.why_not)}};
}

void IoRun::print_json() const {
  std::vector<IoResult> results;
  for (const Measured& one : measured_)
    results.push_back(one.result);
  Json document = Json::parse(to_json(results));
  for (size_t i = 0; i < measured_.size(); ++i) {
    Json& result = document["results"][i];
    for (const char* const name : {"fio", "gdsio"}) {
      const auto found = std::ranges::find(measured_[i].rivals, name, &Rival::name);
      result[name] = found == measured_[i].rivals.end() ? Json(nullptr) : rival_object(*found);
    }
  }
  console_.line(document.dump(2, ' ', false, Json::error_handler_t::replace));
}

Exit IoRun::finish() {
  if (options_.form == OutputForm::json)
    print_json();
  else
    print_text();
  if (options_.fio != Wanted::yes) return Exit::done;
  for (const Measured& one : measured_) {
    const auto fio = std::ranges::find(one.rivals, "fio", &Rival::name);
    if (fio == one.rivals.end() || fio->gb_per_s.empty()) {
      console_.note("headrace: --fio was asked for, and fio did not run");
      return Exit::failed;
    }
  }
  return Exit::done;
}

}  // namespace

Command add_bench_io(CLI::App& bench) {
  CLI::App* command = add_command(
      bench, "io",
      "Measure one setting, with fio beside it on the same files.\n"
      "Takes the options of DeepSpeed's ds_io under their names and with their defaults, and like it writes unless "
      "--read is given. GB are 10^9 bytes.");
  const auto options = std::make_shared<BenchIoOptions>();
  add_bench_io_options(*command, *options);
  add_json(*command, options->form);
  add_examples(*command,
               "Examples:\n"
               "  headrace bench io /data --read\n"
               "  headrace bench io /data --read --write --io-size 4G --block-size auto --queue-depth auto\n"
               "  headrace bench io /nvme0 /nvme1 --read --io-parallel 2\n"
               "  headrace bench io --file model.safetensors\n"
               "  headrace bench io --read --folder /data --io_size 400M --block_size 8M --queue_depth 32\n\n"
               "Exit status: 3 where --validate finds a wrong byte.");
  return {command, [options, command](Console& console) {
            options->io_size_given = was_given(*command, "--io-size");
            const std::string wrong = options->settle();
            return wrong.empty() ? IoRun(console, *options).run() : report_usage(console, wrong);
          }};
}

}  // namespace headrace::cli
