// SPDX-License-Identifier: Apache-2.0
// `headrace tune`: which settings are fastest here, as text, JSON, a page, and a profile for handles.
// One thread.
// Owns its options.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <headrace/atomic_file.h>
#include <headrace/handle.h>

#include "bench.h"
#include "bench_peer.h"
#include "json_file.h"
#include "signals.h"
#include "tune_options.h"
#include "tune_page.h"
#include "units.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

// fio as the library's search runs it: one for each direction.
class FioRival {
 public:
  Result<TuneRivalSample> run(const TuneRivalTask& task) {
    const PeerTask peer_task = {.direction = task.direction,
                                .engine = task.handle.engine,
                                .block_bytes = task.handle.block_bytes,
                                .queue_depth = task.handle.queue_depth,
                                .workers = task.handle.workers,
                                .order = task.order,
                                .registered = task.registered,
                                .bytes = task.bytes,
                                .files = static_cast<uint32_t>(task.paths.size())};
    std::unique_ptr<Peer>& peer = peers_[task.direction == IoDirection::read ? 0 : 1];
    if (!peer) {
      std::expected<std::unique_ptr<Peer>, std::string> found = find_fio(peer_task);
      if (!found) return failed(found.error());
      peer = *std::move(found);
    }
    const std::expected<PeerSample, std::string> sample = peer->run(task.paths, [] {});
    if (!sample) return failed(sample.error());
    return TuneRivalSample{
        .seconds = sample->seconds, .cpu_seconds = sample->cpu_seconds, .bytes = sample->bytes, .note = peer->note()};
  }

 private:
  static std::unexpected<Error> failed(std::string why) {
    return std::unexpected(
        Error{.code = ErrorCode::unavailable, .operation = "fio", .path = {}, .detail = std::move(why)});
  }

  std::array<std::unique_ptr<Peer>, 2> peers_;
};

std::string show_point(const TunedPoint& tuned) {
  const HandleFacts& facts = tuned.handle;
  std::string text =
      fmt::format("{}, {} blocks, depth {}, {} worker{}", engine_name(facts.engine), show_size(facts.block_bytes),
                  facts.queue_depth, facts.workers, facts.workers == 1 ? "" : "s");
  if (tuned.point.registered == Ladder::never) text += ", memory not registered";
  if (tuned.point.order == RequestOrder::in_batches) text += ", sequential requests";
  if (tuned.point.request == RequestSize::block) text += ", single submit";
  if (tuned.is_default) text += " (the defaults)";
  return text;
}

const std::optional<TuneTrack>& track_of(const TunedPoint& tuned, IoDirection direction) {
  return direction == IoDirection::read ? tuned.read : tuned.write;
}

std::string show_interval(const Spread& rate) {
  if (rate.count < 2) return "one sample";
  return fmt::format("{:.2f} to {:.2f}{}", rate.low, rate.high, rate.sure ? "" : ", not sure");
}

Spread defaults_in(const TuneResult& result, IoDirection direction, TuneRound round) {
  const std::optional<TuneTrack>& track = track_of(result.points.front(), direction);
  if (!track) return {};
  const auto found = std::ranges::find(track->rounds, round, &TuneRepeats::round);
  return found == track->rounds.end() ? Spread{} : spread_of(found->gb_per_s);
}

bool differ(const Spread& one, const Spread& other) {
  return one.sure && other.sure && (one.low > other.high || one.high < other.low);
}

// A folder of its own for each run: what other runs left is not mixed in. It goes again where nothing was put into it.
class LogFolder {
 public:
  LogFolder() = default;
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;
  ~LogFolder() {
    std::error_code not_empty;
    if (!path_.empty()) std::filesystem::remove(path_, not_empty);
  }

  Status make(const std::string& parent) {
    const std::time_t now = std::time(nullptr);
    std::tm utc = {};
    std::array<char, 32> stamp = {};
    std::strftime(stamp.data(), stamp.size(), "%Y%m%d-%H%M%S", ::gmtime_r(&now, &utc));
    std::filesystem::path path = std::filesystem::path(parent) / fmt::format("{}-{}", stamp.data(), ::getpid());
    std::error_code failed;
    std::filesystem::create_directories(path, failed);
    if (failed)
      return std::unexpected(Error{.errno_value = failed.value(), .operation = "create a log folder", .path = parent});
    path_ = std::move(path);
    return {};
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;  // empty: there is none
};

class TuneRun {
 public:
  TuneRun(Console& console, TuneArguments& arguments) : console_(console), arguments_(arguments) {}

  Exit run() {
    if (!arguments_.sweep_config.empty()) {
      if (const std::string why = read_sweep(); !why.empty())
        return report_usage(console_, fmt::format("{}: {}", printable(arguments_.sweep_config), why));
    }
    std::string no_fio;
    if (arguments_.fio != Wanted::no) {
      const std::expected<std::unique_ptr<Peer>, std::string> fio = find_fio({});
      if (fio)
        arguments_.tune.rival = {(*fio)->version(), [this](const TuneRivalTask& task) { return fio_.run(task); }};
      else
        no_fio = fio.error();
      if (!fio && arguments_.fio == Wanted::yes) {
        console_.note(fmt::format("headrace: --fio was asked for: {}", no_fio));
        return Exit::failed;
      }
    }
    const Result<TunePlan> plan = plan_tune(arguments_.tune);
    if (!plan) return failed(plan.error());
    if (const Status open = open_outputs(); !open) return report_error(console_, open.error());
    announce(*plan);
    Result<TuneResult> result = [&] {
      ProgressBar bar(console_);
      return tune(arguments_.tune, bar.progress());
    }();
    if (!result) return failed(result.error());
    return finish(*result, no_fio);
  }

 private:
  // So that nobody waits a minute for a result that has no place to go.
  Status open_outputs() {
    for (const std::string& path : {arguments_.output, arguments_.html}) {
      if (path.empty()) continue;
      // Gone at once: what the commit would meet is met here.
      if (const Result<AtomicFile> file = AtomicFile::create(path, {}); !file) return std::unexpected(file.error());
    }
    if (arguments_.log_dir.empty()) return {};
    return logs_.make(arguments_.log_dir);
  }

  std::string read_sweep() {
    std::error_code none;
    if (!std::filesystem::is_regular_file(arguments_.sweep_config, none)) return "this is no file that can be read";
    const Result<std::string> text = read_json_text(arguments_.sweep_config);
    if (!text) return text.error().message();
    const std::expected<TuneSpace, std::string> space = parse_sweep(*text);
    if (!space) return space.error();
    arguments_.tune.space = *space;
    return {};
  }

  // What it costs is known before it begins: SSDs wear.
  void announce(const TunePlan& plan) const {
    console_.note(
        fmt::format("headrace: {} combinations of settings, and later those beside the best; about {:.0f} s at most; "
                    "writes at most "
                    "{}, reads at most {}, and takes {} of space until it ends",
                    plan.points, plan.seconds_max, show_bytes(plan.written_bytes_max), show_bytes(plan.read_bytes_max),
                    show_bytes(plan.space_bytes)));
  }

  Exit failed(const Error& error) {
    return error.code == ErrorCode::invalid_argument ? report_usage(console_, error.message())
                                                     : report_error(console_, error);
  }

  Exit finish(const TuneResult& result, const std::string& no_fio) {
    const std::string json = to_json(result);
    Exit code = result.complaint.empty() ? Exit::done : Exit::failed;
    if (!result.complaint.empty())
      console_.note(
          fmt::format("headrace: ended early, what follows is what was known then: {}", printable(result.complaint)));
    for (const auto& [path, text] : {std::pair(arguments_.output, json + "\n"),
                                     std::pair(arguments_.html, arguments_.html.empty() ? "" : tune_page(json))}) {
      if (path.empty()) continue;
      if (!result.complaint.empty()) {
        // A profile that was confirmed is worth more than one that was not.
        console_.note(fmt::format("headrace: nothing was written to '{}', since these settings are unconfirmed{}",
                                  printable(path), arguments_.form == OutputForm::json ? "" : "; --json prints them"));
      } else if (const Status saved = save(path, text); !saved) {
        console_.note(fmt::format("headrace: {}", printable(saved.error().message())));  // the result follows
        code = Exit::failed;
      }
    }
    if (!arguments_.log_dir.empty()) {
      if (const std::string why = write_logs(result); !why.empty()) {
        console_.note(fmt::format("headrace: {}", printable(why)));
        code = Exit::failed;
      }
    }
    if (arguments_.form == OutputForm::json)
      console_.line(json);
    else
      print_text(result, no_fio);
    const auto ran = [](const std::optional<TuneRivalResult>& rival) { return !rival || !rival->gb_per_s.empty(); };
    if (arguments_.fio == Wanted::yes && (!ran(result.read_rival) || !ran(result.write_rival))) {
      console_.note("headrace: --fio was asked for, and fio did not run");
      code = Exit::failed;
    }
    return code;
  }

  // Whole or not at all.
  static Status save(const std::string& path, const std::string& text) {
    Result<Handle> handle = Handle::create({.engine = EngineKind::posix, .workers = 1});
    if (!handle) return std::unexpected(std::move(handle).error());
    const auto* const data = reinterpret_cast<const std::byte*>(text.data());
    const Result<Transfer> sent = handle->replace(path, {.source = {.data = data, .bytes = text.size(), .device = {}}});
    if (!sent) return std::unexpected(sent.error());
    if (const Result<uint64_t> done = sent->result(); !done) return std::unexpected(done.error());
    return {};
  }

  void print_text(const TuneResult& result, const std::string& no_fio) const;
  void print_points(const TuneResult& result, IoDirection direction) const;
  void print_rival(const TuneResult& result, IoDirection direction) const;
  void print_use(const TuneResult& result) const;
  void print_best(const TuneResult& result, IoDirection direction) const;
  [[nodiscard]] std::string write_logs(const TuneResult& result) const;

  Console& console_;
  TuneArguments& arguments_;
  FioRival fio_;
  LogFolder logs_;
};

// In the order of their rates; what failed comes last.
void TuneRun::print_points(const TuneResult& result, IoDirection direction) const {
  std::vector<const TunedPoint*> order;
  for (const TunedPoint& point : result.points)
    if (track_of(point, direction)) order.push_back(&point);
  if (order.empty()) return;
  const auto rate = [&](const TunedPoint* point) {
    const TuneTrack& track = *track_of(*point, direction);
    return track.rounds.empty() ? 0.0 : spread_of(track.rounds.back().gb_per_s).median;
  };
  std::ranges::sort(order, std::ranges::greater{}, rate);
  console_.line(fmt::format("{}:", direction_name(direction)));
  Table table({{"settings"}, {"GB/s", Align::right}, {"repeats", Align::right}, {"cpu-s/GB", Align::right}, {"until"}});
  for (const TunedPoint* const point : order) {
    const TuneTrack& track = *track_of(*point, direction);
    if (track.rounds.empty()) {
      table.row({show_point(*point), "-", "0", "-", track.error ? printable(track.error->message()) : ""});
      continue;
    }
    const TuneRepeats& last = track.rounds.back();
    table.row({show_point(*point), fmt::format("{:.2f}", rate(point)), fmt::format("{}", last.gb_per_s.size()),
               fmt::format("{:.4f}", spread_of(last.cpu_seconds_per_gb).median),
               track.error ? printable(track.error->message()) : fmt::format("{} round", tune_round_name(last.round))});
  }
  table.print(console_);
  console_.line();
}

void TuneRun::print_rival(const TuneResult& result, IoDirection direction) const {
  const auto& rival = direction == IoDirection::read ? result.read_rival : result.write_rival;
  if (!rival) return;
  if (rival->gb_per_s.empty()) {
    console_.line(fmt::format("  {}: {}", direction_name(direction), printable(rival->why_not)));
    return;
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < rival->gb_per_s.size(); ++i)
    ratios.push_back(rival->headrace_gb_per_s[i] / rival->gb_per_s[i]);
  console_.line(fmt::format("  {} with the same settings, in turn: {} {} GB/s, headrace {}; headrace / fio {}",
                            printable(rival->name), direction_name(direction),
                            show_spread(spread_of(rival->gb_per_s), 2),
                            show_spread(spread_of(rival->headrace_gb_per_s), 2), show_spread(spread_of(ratios), 3)));
  if (!rival->note.empty()) console_.line(fmt::format("    {}", rival->note));
}

void TuneRun::print_use(const TuneResult& result) const {
  const auto best = Json::parse(to_json(result));
  const char* const use = result.both ? "both" : (result.read ? "read" : "write");
  if (best[use].is_null()) return;
  if (arguments_.output.empty()) {
    console_.line("Nothing was saved: --output FILE writes what headrace.Handle(profile=FILE) takes.");
  } else {
    const std::string path = Json(printable(arguments_.output)).dump();
    console_.line("To use it in Python:");
    for (const char* const one : {"read", "write", "both"})
      if (!best[one].is_null())
        console_.line(fmt::format("  headrace.Handle(profile={}, profile_for=\"{}\")", path, one));
  }
  console_.line(
      fmt::format("In a DeepSpeed configuration, for {}:", use == std::string("both") ? "reads and writes" : use));
  console_.line(fmt::format("  \"aio\": {}", best[use]["aio"].dump()));
}

void TuneRun::print_best(const TuneResult& result, IoDirection direction) const {
  const std::optional<TuneBest>& best = direction == IoDirection::read ? result.read : result.write;
  if (!best) return;
  const TunedPoint& tuned = result.points[best->point];
  const bool certain = result.complaint.empty() && best->confirmed;
  std::string line = fmt::format("Best {}{}: {:.2f} GB/s ({})", direction_name(direction), certain ? "" : " so far",
                                 best->gb_per_s.median, show_interval(best->gb_per_s));
  if (best->by_default && !tuned.is_default && best->gb_per_s.count > 1)
    line += fmt::format(
        ", {:.2f} of the defaults{}", *best->by_default,
        differ(best->gb_per_s, defaults_in(result, direction, best->round)) ? "" : " (not a sure difference)");
  if (!certain) line += ", unconfirmed";
  line += fmt::format(", {:.4f} cpu-s/GB: {}", best->cpu_seconds_per_gb.median, show_point(tuned));
  console_.line(line);
}

void TuneRun::print_text(const TuneResult& result, const std::string& no_fio) const {
  std::string places;
  for (const BenchmarkPlace& place : result.places)
    places += (places.empty() ? "" : ", ") + show_place(place);
  console_.line(fmt::format("{} combinations in {}: {} read, {} written, {}", result.points.size(), places,
                            show_bytes(result.read_bytes), show_bytes(result.written_bytes),
                            show_seconds(result.seconds)));
  if (result.out_of_time) console_.line("  The time was short: --max-seconds gives more, and surer results.");
  for (const auto& [name, best] : {std::pair("read", &result.read), std::pair("write", &result.write)})
    if (*best && !(*best)->why.empty()) console_.line(fmt::format("  {}: {}", name, printable((*best)->why)));
  if (result.read && result.read->cold && !*result.read->cold)
    console_.line("  Reads came from the page cache in part: this is not the device's rate.");
  size_t broken = 0;
  for (const TunedPoint& point : result.points)
    if ((point.read && point.read->error) || (point.write && point.write->error)) ++broken;
  if (broken != 0) console_.line(fmt::format("  {} combinations could not be measured; --verbose tells why", broken));
  print_rival(result, IoDirection::read);
  print_rival(result, IoDirection::write);
  if (!no_fio.empty()) console_.line(fmt::format("  {}", no_fio));
  console_.line();
  if (arguments_.verbose) {
    print_points(result, IoDirection::read);
    print_points(result, IoDirection::write);
  }
  if (result.complaint.empty()) {
    print_use(result);
    console_.line();
  }
  if (result.both)
    console_.line(fmt::format("Best for both{}: read {:.2f}, write {:.2f} GB/s: {}",
                              result.complaint.empty() ? "" : " so far", result.both->read_gb_per_s,
                              result.both->write_gb_per_s, show_point(result.points[result.both->point])));
  print_best(result, IoDirection::read);
  print_best(result, IoDirection::write);
}

// What went wrong, in words.
std::string TuneRun::write_logs(const TuneResult& result) const {
  namespace fs = std::filesystem;
  const fs::path& folder = logs_.path();
  const Json document = Json::parse(to_json(result));
  std::error_code failed;
  for (const char* const direction : {"read", "write"}) {
    bool made = false;
    for (const Json& point : document["points"]) {
      if (point[direction].is_null()) continue;
      if (!made) fs::create_directories(folder / direction, failed);
      made = true;
      if (failed) return fmt::format("{}: {}", (folder / direction).string(), failed.message());
      const Json& settings = point["settings"];
      const std::string name =
          fmt::format("{:03}_{}_{}_{}_d{}_bs{}_p{}.json", point["index"].get<uint32_t>(),
                      settings["engine"].get<std::string>(), settings["single_submit"].get<bool>() ? "single" : "block",
                      settings["sequential_requests"].get<bool>() ? "sequential" : "overlap",
                      settings["queue_depth"].get<uint32_t>(), settings["block_bytes"].get<uint64_t>(),
                      settings["workers"].get<uint32_t>());
      std::ofstream file(folder / direction / name);
      file << Json({{"settings", settings}, {direction, point[direction]}}).dump(2) << '\n';
      if (!file.flush()) return fmt::format("{} cannot be written", (folder / direction / name).string());
    }
  }
  console_.note(fmt::format("headrace: logs in {}", printable(folder.string())));
  return {};
}

}  // namespace

std::string tune_page(std::string_view json) {
  // In a script element only "</" and "<!--" mean anything, and JSON has no need of a bare '<'.
  std::string safe;
  for (const char c : json)
    c == '<' ? safe += "\\u003c" : safe += c;
  constexpr std::string_view kPlace = "\"HEADRACE_TUNE_RESULT\"";
  std::string page(kTunePage);
  const size_t place = page.find(kPlace);
  return place == std::string::npos ? page : page.replace(place, kPlace.size(), safe);
}

Command add_tune(CLI::App& program) {
  CLI::App* command = add_command(
      program, "tune",
      "Find the settings with which files are read and written fastest here.\n"
      "Tries combinations of engine, block size, queue depth and workers in rounds, each with fewer of them, reads and "
      "writes apart. Takes the options of DeepSpeed's ds_nvme_tune under their names. Its files have no name and are "
      "gone when it ends, however it ends. GB are 10^9 bytes.");
  const auto arguments = std::make_shared<TuneArguments>();
  add_tune_options(*command, *arguments);
  add_json(*command, arguments->form);
  add_examples(*command,
               "Examples:\n"
               "  headrace tune /data --output tune.json --html tune.html\n"
               "  headrace tune /nvme0 /nvme1 --no-write\n"
               "  headrace tune --nvme_dir /data --sweep_config sweep.json --loops 2\n"
               "  headrace tune /data --max-written 2GB --max-seconds 20\n\n"
               "In Python: headrace.Handle(profile=\"tune.json\", profile_for=\"read\").");
  return {command, [arguments](Console& console) {
            const std::string why = arguments->settle();
            return why.empty() ? TuneRun(console, *arguments).run() : report_usage(console, why);
          }};
}

}  // namespace headrace::cli
