// SPDX-License-Identifier: Apache-2.0
// The result of a tuning, and its settings under the keys of each program that takes them.
// Any thread; pure.
// Owns nothing.
#include <string>

#include <headrace/tune.h>

#include "diagnose/bench_json.h"

namespace headrace {
namespace {

using diagnose::Json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }
Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

const char* registered_name(Ladder ladder) {
  switch (ladder) {
    case Ladder::automatic: return "auto";
    case Ladder::never: return "never";
    case Ladder::required: return "required";
  }
  return "";
}

// As headrace.Handle takes them.
Json handle_of(const TunedPoint& tuned) {
  return {{"engine", engine_name(tuned.handle.engine)},
          {"workers", tuned.handle.workers},
          {"block_bytes", tuned.handle.block_bytes},
          {"queue_depth", tuned.handle.queue_depth},
          {"registered", registered_name(tuned.point.registered)}};
}

// As DeepSpeed's aio_handle takes them, and the aio section of its configuration.
Json deepnvme_of(const TunedPoint& tuned) {
  return {{"block_size", tuned.handle.block_bytes},
          {"queue_depth", tuned.handle.queue_depth},
          {"single_submit", tuned.point.request == RequestSize::block},
          {"overlap_events", tuned.point.order == RequestOrder::overlapping},
          {"intra_op_parallelism", tuned.handle.workers}};
}

Json settings_of(const TunedPoint& tuned) {
  return {{"engine", engine_name(tuned.handle.engine)},
          {"block_bytes", tuned.handle.block_bytes},
          {"queue_depth", tuned.handle.queue_depth},
          {"workers", tuned.handle.workers},
          {"registered", registered_name(tuned.point.registered)},
          {"sequential_requests", tuned.point.order == RequestOrder::in_batches},
          {"single_submit", tuned.point.request == RequestSize::block}};
}

// A point that could not even be opened has no facts: then what was asked for.
TunedPoint with_facts(const TunedPoint& tuned) {
  TunedPoint filled = tuned;
  if (filled.handle.block_bytes != 0) return filled;
  filled.handle.engine = tuned.point.engine;
  filled.handle.block_bytes = tuned.point.block_bytes;
  filled.handle.queue_depth = tuned.point.queue_depth;
  filled.handle.workers = tuned.point.workers;
  return filled;
}

Json track_json(const std::optional<TuneTrack>& track) {
  if (!track) return nullptr;
  Json rounds = Json::array();
  for (const TuneRepeats& repeats : track->rounds) {
    rounds.push_back({{"round", tune_round_name(repeats.round)},
                      {"bytes", repeats.bytes},
                      {"gb_per_s", repeats.gb_per_s},
                      {"cpu_seconds_per_gb", repeats.cpu_seconds_per_gb}});
  }
  const bool measured = !track->rounds.empty();
  const TuneRepeats none;
  const TuneRepeats& last = measured ? track->rounds.back() : none;
  const bool to_the_end = measured && last.round == TuneRound::last;
  return {{"gb_per_s", measured ? Json(spread_of(last.gb_per_s).median) : Json(nullptr)},
          {"cpu_seconds_per_gb", measured ? Json(spread_of(last.cpu_seconds_per_gb).median) : Json(nullptr)},
          {"dropped_after", measured && !to_the_end ? Json(tune_round_name(last.round)) : Json(nullptr)},
          {"error", track->error ? diagnose::json_of(*track->error) : Json(nullptr)},
          {"rounds", std::move(rounds)}};
}

Json points_json(const TuneResult& result) {
  Json points = Json::array();
  for (size_t i = 0; i < result.points.size(); ++i) {
    const TunedPoint tuned = with_facts(result.points[i]);
    points.push_back({{"index", i},
                      {"is_default", tuned.is_default},
                      {"settings", settings_of(tuned)},
                      {"read", track_json(tuned.read)},
                      {"write", track_json(tuned.write)}});
  }
  return points;
}

Json rival_json(const std::optional<TuneRivalResult>& rival) {
  if (!rival) return nullptr;
  std::vector<double> ratios;
  for (size_t i = 0; i < rival->gb_per_s.size(); ++i)
    ratios.push_back(rival->headrace_gb_per_s[i] / rival->gb_per_s[i]);
  const bool ran = !ratios.empty();
  const auto median = [&](const std::vector<double>& values) {
    return ran ? Json(spread_of(values).median) : Json(nullptr);
  };
  return {{"name", rival->name},
          {"gb_per_s", median(rival->gb_per_s)},
          // In short runs it counts none: that is not nothing.
          {"cpu_seconds_per_gb", ran && spread_of(rival->cpu_seconds_per_gb).median > 0
                                     ? Json(spread_of(rival->cpu_seconds_per_gb).median)
                                     : Json(nullptr)},
          {"headrace_gb_per_s", median(rival->headrace_gb_per_s)},
          {"headrace_by_it", median(ratios)},
          {"samples", rival->gb_per_s},
          {"headrace_samples", rival->headrace_gb_per_s},
          {"note", or_null(rival->note)},
          {"why_not", or_null(rival->why_not)}};
}

void add_uses(Json& object, const TunedPoint& tuned) {
  object["handle"] = handle_of(tuned);
  object["deepnvme"] = deepnvme_of(tuned);
  object["aio"] = deepnvme_of(tuned);
  object["aio"]["use_gds"] = false;
}

Json best_json(const TuneResult& result, const std::optional<TuneBest>& best,
               const std::optional<TuneRivalResult>& rival) {
  if (!best) return nullptr;
  Json object = {{"point", best->point},
                 {"round", tune_round_name(best->round)},
                 {"confirmed", best->confirmed},
                 {"gb_per_s", diagnose::json_of(best->gb_per_s)},
                 {"cpu_seconds_per_gb", diagnose::json_of(best->cpu_seconds_per_gb)},
                 {"by_default", or_null(best->by_default)},
                 {"cold", best->cold ? Json(*best->cold) : Json(nullptr)},
                 {"why_not_faster", or_null(best->why)}};
  add_uses(object, result.points[best->point]);
  object["rival"] = rival_json(rival);
  return object;
}

Json both_json(const TuneResult& result) {
  if (!result.both) return nullptr;
  Json object = {{"point", result.both->point},
                 {"read_gb_per_s", result.both->read_gb_per_s},
                 {"write_gb_per_s", result.both->write_gb_per_s}};
  add_uses(object, result.points[result.both->point]);
  return object;
}

}  // namespace

std::string to_json(const TuneResult& result) {
  Json document = {{"schema", "headrace.tune"},
                   {"version", 1},
                   {"interrupted", result.interrupted},
                   {"out_of_time", result.out_of_time},
                   {"complaint", or_null(result.complaint)},
                   {"read", best_json(result, result.read, result.read_rival)},
                   {"write", best_json(result, result.write, result.write_rival)},
                   {"both", both_json(result)},
                   {"io_bytes", result.io_bytes},
                   {"read_bytes", result.read_bytes},
                   {"written_bytes", result.written_bytes},
                   {"seconds", result.seconds}};
  document["places"] = diagnose::places_json(result.places);
  document["machine"] = diagnose::machine_json(result.machine);
  document["points"] = points_json(result);
  return diagnose::dump(document);
}

}  // namespace headrace
