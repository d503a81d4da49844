// SPDX-License-Identifier: Apache-2.0
// See tune_search.h.
// One thread.
// Borrows what measures.
#include "diagnose/tune_search.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "base/units.h"
#include "diagnose/tune_rank.h"
#include "diagnose/tune_space.h"

namespace headrace::diagnose {
namespace {

// The shares of the bytes that may be moved in one direction. What the first round has is spread thinnest: it only has to keep the
// good ones among the best quarter. Filling the files once is paid from what is left.
constexpr double kFirstShare = 0.30;
constexpr double kSecondShare = 0.14;
constexpr double kThirdShare = 0.10;
constexpr double kLastShare = 0.35;
constexpr double kRivalShare = 0.05;
// Of a single repeat. The files are filled once, with as much as the largest read, and one repeat of either kind comes before the
// rounds: that is what the shares above leave over.
constexpr double kRepeatShareMax = 0.021;
constexpr double kFillShareMax = 0.03;  // of the bytes that may be written
// When the rounds have to be over, as shares of the time.
constexpr double kFirstUntil = 0.55;
constexpr double kSecondUntil = 0.68;
constexpr double kThirdUntil = 0.78;
constexpr double kLastUntil = 0.93;

constexpr uint64_t kLeastBytes = 8 * base::kMiB;  // shorter repeats tell nothing
constexpr uint64_t kStepBytes = base::kMiB;
constexpr uint32_t kKeptShare = 4;  // the best quarter goes on after the first round
constexpr uint32_t kKeptLeast = 4;
constexpr uint32_t kThirdLeaders = 2;
constexpr uint32_t kMiddleRepeats = 1;  // of the second and third round
constexpr uint32_t kNeighboursMax = 5;
constexpr uint64_t kRivalTurns = uint64_t{2} * kRivalRepeats;  // headrace's too
constexpr double kGiga = 1e9;

uint32_t third_points() { return kThirdLeaders + kNeighboursMax; }
// The best of both directions, and the defaults.
uint32_t last_points(const TuneBounds& bounds) {
  return static_cast<uint32_t>(bounds.directions.size()) * kFinalists + 1;
}

// Where writes are not measured, filling may take all that may be written.
double fill_share(const TuneBounds& bounds) {
  return std::ranges::find(bounds.directions, IoDirection::write) == bounds.directions.end() ? 1 : kFillShareMax;
}

// How often each round moves its bytes, by TuneRound.
std::array<uint64_t, 4> runs_of(const TuneBounds& bounds, uint64_t points, uint64_t second_points) {
  return {points * bounds.loops, second_points * kMiddleRepeats, uint64_t{third_points()} * kMiddleRepeats,
          uint64_t{last_points(bounds)} * kFinalRepeats};
}

bool ends_all(const Error& error) {
  return error.code == ErrorCode::interrupted || error.code == ErrorCode::corrupt || error.errno_value == ENOSPC;
}

}  // namespace

TuneSizing sizes_for(uint32_t points, const TuneBounds& bounds, IoDirection direction) {
  const auto bytes_max = static_cast<double>(bounds.bytes_max[static_cast<size_t>(direction)]);
  const uint64_t least = std::min(kLeastBytes, bounds.io_bytes);
  double repeat_max = bytes_max * kRepeatShareMax;
  const auto may_be_written = static_cast<double>(bounds.bytes_max[static_cast<size_t>(IoDirection::write)]);
  if (direction == IoDirection::read) repeat_max = std::min(repeat_max, may_be_written * fill_share(bounds));
  const auto per_file = [&](double share, uint64_t runs) {
    const double bytes = std::min(bytes_max * share / static_cast<double>(runs), repeat_max);
    return std::min(base::align_down(static_cast<uint64_t>(bytes) / bounds.files, kStepBytes), bounds.io_bytes);
  };
  const auto second_points = std::min(points, std::max(kKeptLeast, points / kKeptShare));
  const auto [first, second, third, last] = runs_of(bounds, points, second_points);
  const std::array<uint64_t, 5> runs = {first, second, third, last, kRivalTurns};
  const std::array<double, 5> shares = {kFirstShare, kSecondShare, kThirdShare, kLastShare, kRivalShare};
  TuneSizes sizes = {.second_points = second_points};
  TuneSizing sizing;
  // What a single repeat may be decides where there are few points.
  sizing.least_bytes =
      static_cast<uint64_t>(static_cast<double>(bounds.files * std::max(least, kStepBytes)) / kRepeatShareMax);
  for (size_t i = 0; i < runs.size(); ++i) {
    // Files shorter than a step are moved whole or not at all.
    const uint64_t bytes = std::max(per_file(shares[i], runs[i]), bounds.io_bytes < kStepBytes ? bounds.io_bytes : 0);
    const auto needed = static_cast<double>(runs[i] * bounds.files * std::max(least, kStepBytes)) / shares[i];
    sizing.least_bytes = std::max(sizing.least_bytes, static_cast<uint64_t>(needed) + 1);
    (i < sizes.bytes.size() ? sizes.bytes[i] : sizes.rival_bytes) = bytes;
  }
  // A file is filled with a repeat at least.
  if (direction == IoDirection::read)
    sizing.least_fill_bytes =
        static_cast<uint64_t>(static_cast<double>(bounds.files * std::max(least, kStepBytes)) / fill_share(bounds));
  if (static_cast<double>(sizing.least_bytes) <= bytes_max &&
      static_cast<double>(sizing.least_fill_bytes) <= may_be_written)
    sizing.sizes = sizes;
  return sizing;
}

TuneSearch::TuneSearch(TuneBounds bounds, TuneSpace asked, const std::vector<TunePoint>& points, TuneBench& bench)
    : bounds_(std::move(bounds)), asked_(std::move(asked)), bench_(bench) {
  for (const TunePoint& point : points)
    result_.points.push_back({.point = point});
  HEADRACE_CHECK(!result_.points.empty());
  result_.points.front().is_default = true;
  for (const IoDirection direction : bounds_.directions) {
    const TuneSizing sizing = sizes_for(static_cast<uint32_t>(points.size()), bounds_, direction);
    HEADRACE_CHECK(sizing.sizes.has_value());
    sizes(direction) = *sizing.sizes;
  }
}

Status TuneSearch::run() {
  Status status = calibrate();
  if (status) status = first_rounds();
  if (status) status = last_round();
  choose();
  for (const IoDirection direction : bounds_.directions)
    if (status && bounds_.rival) status = compare_with_rival(direction);
  if (status) {
    if (result_.read || result_.write || !first_error_) return {};
    return std::unexpected(*first_error_);  // not one point could be measured
  }
  if (!result_.read && !result_.write) return status;
  result_.interrupted = status.error().code == ErrorCode::interrupted;
  result_.complaint = status.error().message();
  return {};
}

// How long a repeat takes here is known only now: on a slow device repeats become shorter, so that each point has its turn.
Status TuneSearch::calibrate() {
  std::array<double, 5> needed = {};  // seconds, by TuneRound, and for the rival
  bench_.expect(expected_bytes());
  for (const IoDirection direction : bounds_.directions) {
    const uint64_t bytes = *std::ranges::max_element(sizes(direction).bytes);
    // Larger than any that follows: files are filled once, and memory is taken once.
    const Result<IoSample> sample = bench_.run(result_.points.front().point, direction, bytes);
    if (!sample && (ends_all(sample.error()) || result_.points.size() == 1)) return std::unexpected(sample.error());
    if (!sample) continue;
    const double per_byte = sample->seconds / static_cast<double>(std::max<uint64_t>(sample->bytes, 1));
    const TuneSizes& all = sizes(direction);
    const std::array<uint64_t, 4> runs = runs_of(bounds_, result_.points.size(), all.second_points);
    for (size_t round = 0; round < runs.size(); ++round)
      needed[round] += per_byte * static_cast<double>(all.bytes[round] * bounds_.files * runs[round]);
    if (bounds_.rival) needed[4] += per_byte * static_cast<double>(all.rival_bytes * bounds_.files * kRivalTurns);
  }
  began_ = bench_.seconds();
  constexpr std::array<double, 6> kFromTo = {0, kFirstUntil, kSecondUntil, kThirdUntil, kLastUntil, 1};
  const uint64_t least = std::min(kLeastBytes, bounds_.io_bytes);
  for (size_t round = 0; round < needed.size(); ++round) {
    const double allowed = std::max(share(kFromTo[round + 1]) - share(kFromTo[round]), 0.0);
    if (needed[round] <= allowed) continue;
    result_.out_of_time = true;
    for (TuneSizes& one : sizes_) {
      uint64_t& bytes = round < one.bytes.size() ? one.bytes[round] : one.rival_bytes;
      const auto scaled = static_cast<uint64_t>(static_cast<double>(bytes) * allowed / needed[round]);
      bytes = std::min(bytes, std::max(least, base::align_down(scaled, kStepBytes)));
    }
  }
  bench_.expect(expected_bytes());
  return {};
}

uint64_t TuneSearch::expected_bytes() {
  uint64_t bytes = 0;
  for (const IoDirection direction : bounds_.directions) {
    const TuneSizes& all = sizes(direction);
    const std::array<uint64_t, 4> runs = runs_of(bounds_, result_.points.size(), all.second_points);
    bytes += *std::ranges::max_element(all.bytes);
    for (size_t round = 0; round < runs.size(); ++round)
      bytes += runs[round] * all.bytes[round];
    if (bounds_.rival) bytes += kRivalTurns * all.rival_bytes;
  }
  return bytes * bounds_.files;
}

Status TuneSearch::first_rounds() {
  std::vector<uint32_t> all(result_.points.size());
  for (uint32_t i = 0; i < all.size(); ++i)
    all[i] = i;
  // Each direction has half of the time that is left of a round's, the second one all of it.
  const auto until = [&](size_t turn, double from, double to) {
    const auto turns = static_cast<double>(bounds_.directions.size());
    return share(from + (to - from) * (static_cast<double>(turn) + 1) / turns);
  };
  const size_t turns = bounds_.directions.size();
  for (size_t turn = 0; turn < turns; ++turn) {
    Status played = play(all, bounds_.directions[turn], TuneRound::first, bounds_.loops, until(turn, 0, kFirstUntil));
    if (!played) return played;
  }
  for (size_t turn = 0; turn < turns; ++turn) {
    const IoDirection direction = bounds_.directions[turn];
    const std::vector<uint32_t> kept = promising(result_.points, direction, sizes(direction).second_points);
    Status played = play(kept, direction, TuneRound::second, kMiddleRepeats, until(turn, kFirstUntil, kSecondUntil));
    if (!played) return played;
  }
  for (size_t turn = 0; turn < turns; ++turn) {
    const IoDirection direction = bounds_.directions[turn];
    std::vector<uint32_t> kept = promising(result_.points, direction, kThirdLeaders);
    if (kept.empty()) continue;
    const TunedPoint& leader = result_.points[kept.front()];
    const TunePoint settled = leader.is_default ? bounds_.by_default : leader.point;
    for (const TunePoint& neighbour : neighbours_of(settled, asked_, bounds_.io_bytes)) {
      const uint32_t index = add(neighbour);
      if (std::ranges::find(kept, index) == kept.end()) kept.push_back(index);
    }
    Status played = play(kept, direction, TuneRound::third, kMiddleRepeats, until(turn, kSecondUntil, kThirdUntil));
    if (!played) return played;
  }
  return {};
}

Status TuneSearch::last_round() {
  finalists_.push_back(0);
  for (const IoDirection direction : bounds_.directions) {
    // The best of what was looked at most often, and the best of what lies beside it.
    std::vector<uint32_t> best = promising(result_.points, direction, 1);
    for (const uint32_t index : leaders(direction, TuneRound::third, kFinalists).points)
      if (std::ranges::find(best, index) == best.end() && best.size() < kFinalists) best.push_back(index);
    for (const uint32_t index : best)
      if (std::ranges::find(finalists_, index) == finalists_.end()) finalists_.push_back(index);
  }
  const size_t turns = bounds_.directions.size();
  for (size_t turn = 0; turn < turns; ++turn) {
    const double until =
        kThirdUntil + (kLastUntil - kThirdUntil) * static_cast<double>(turn + 1) / static_cast<double>(turns);
    Status played = play(finalists_, bounds_.directions[turn], TuneRound::last, kFinalRepeats, share(until));
    if (!played) return played;
    bench_.forget();
  }
  return {};
}

Status TuneSearch::play(std::vector<uint32_t> points, IoDirection direction, TuneRound round, uint32_t repeats,
                        double until_seconds) {
  for (uint32_t repeat = 0; repeat < repeats; ++repeat) {
    // Whoever always came after the same one might always find the device in the same state.
    std::ranges::shuffle(points, random_);
    for (const uint32_t point : points) {
      if (bench_.seconds() > until_seconds) {
        result_.out_of_time = true;
        return {};
      }
      if (Status measured = measure(point, direction, round); !measured) return measured;
      if (round != TuneRound::last) bench_.forget();
    }
  }
  return {};
}

Status TuneSearch::measure(uint32_t point, IoDirection direction, TuneRound round) {
  std::optional<TuneTrack>& track = track_of(result_.points[point], direction);
  if (!track) track.emplace();
  if (track->error) return {};
  const uint64_t bytes = sizes(direction).bytes[static_cast<size_t>(round)];
  const Result<IoSample> sample = bench_.run(result_.points[point].point, direction, bytes);
  if (!sample) {
    if (ends_all(sample.error())) return std::unexpected(sample.error());
    if (!first_error_) first_error_ = sample.error();
    track->error = sample.error();
    return {};
  }
  auto repeats = std::ranges::find(track->rounds, round, &TuneRepeats::round);
  if (repeats == track->rounds.end()) repeats = track->rounds.insert(repeats, {.round = round, .bytes = sample->bytes});
  const double gigabytes = static_cast<double>(sample->bytes) / kGiga;
  repeats->gb_per_s.push_back(gigabytes / sample->seconds);
  repeats->cpu_seconds_per_gb.push_back(sample->cpu_seconds / gigabytes);
  return {};
}

TuneSearch::Leaders TuneSearch::leaders(IoDirection direction, TuneRound round, size_t count) const {
  std::vector<uint32_t> all(result_.points.size());
  for (uint32_t i = 0; i < all.size(); ++i)
    all[i] = i;
  for (auto at = static_cast<int>(round); at >= 0; --at) {
    std::vector<uint32_t> order = ranked(result_.points, all, direction, static_cast<TuneRound>(at));
    if (order.empty()) continue;
    if (order.size() > count) order.erase(order.begin() + static_cast<std::ptrdiff_t>(count), order.end());
    return {.round = static_cast<TuneRound>(at), .points = std::move(order)};
  }
  return {};
}

bool TuneSearch::last_round_counts(IoDirection direction) const {
  return std::ranges::all_of(finalists_, [&](uint32_t index) {
    const std::optional<TuneTrack>& track = track_of(result_.points[index], direction);
    return (track && track->error) || repeats_of(result_.points[index], direction, TuneRound::last) != nullptr;
  });
}

uint32_t TuneSearch::add(const TunePoint& point) {
  const auto found = std::ranges::find(result_.points, point, &TunedPoint::point);
  if (found != result_.points.end()) return static_cast<uint32_t>(found - result_.points.begin());
  result_.points.push_back({.point = point});
  return static_cast<uint32_t>(result_.points.size() - 1);
}

void TuneSearch::choose() {
  for (const IoDirection direction : bounds_.directions)
    choose_one(direction);
  if (bounds_.directions.size() == 2 && result_.read && result_.write) choose_both();
}

void TuneSearch::choose_one(IoDirection direction) {
  const Leaders first = leaders(direction, last_round_counts(direction) ? TuneRound::last : TuneRound::third, 1);
  if (first.points.empty()) return;
  const TuneRepeats& repeats = *repeats_of(result_.points[first.points.front()], direction, first.round);
  TuneBest chosen = {.point = first.points.front(),
                     .round = first.round,
                     .confirmed = first.round == TuneRound::last && repeats.gb_per_s.size() == kFinalRepeats,
                     .gb_per_s = spread_of(repeats.gb_per_s),
                     .cpu_seconds_per_gb = spread_of(repeats.cpu_seconds_per_gb)};
  const double by_default = median_rate(result_.points.front(), direction, repeats.round);
  if (by_default > 0) chosen.by_default = chosen.gb_per_s.median / by_default;
  (direction == IoDirection::read ? result_.read : result_.write) = std::move(chosen);
}

// Among those that were measured in both directions in the last round, which are the best of either; else in the first.
void TuneSearch::choose_both() {
  for (const TuneRound round : {TuneRound::last, TuneRound::first}) {
    std::optional<TuneBoth> best;
    double best_cost = 0;
    for (uint32_t i = 0; i < result_.points.size(); ++i) {
      const TunedPoint& point = result_.points[i];
      const double read = median_rate(point, IoDirection::read, round);
      const double write = median_rate(point, IoDirection::write, round);
      if (read <= 0 || write <= 0 || point.read->error || point.write->error) continue;
      const double cost = median_cost(point, IoDirection::read, round) + median_cost(point, IoDirection::write, round);
      const double best_sum = best ? best->read_gb_per_s + best->write_gb_per_s : 0;
      const bool tied = read + write >= kTie * best_sum && best_sum >= kTie * (read + write);
      if (best && (tied ? cost >= best_cost : read + write <= best_sum)) continue;
      best = {.point = i, .read_gb_per_s = read, .write_gb_per_s = write};
      best_cost = cost;
    }
    result_.both = best;
    if (best) return;
  }
}

// In turn with the best settings, on the same file; in even rounds headrace comes first, in odd ones the other.
Status TuneSearch::compare_with_rival(IoDirection direction) {
  const std::optional<TuneBest>& best = direction == IoDirection::read ? result_.read : result_.write;
  if (!best) return {};
  const TunePoint point = result_.points[best->point].point;
  TuneRivalResult& result = (direction == IoDirection::read ? result_.read_rival : result_.write_rival).emplace();
  const uint64_t bytes = std::min(sizes(direction).rival_bytes, *std::ranges::max_element(sizes(direction).bytes));
  for (uint32_t repeat = 0; repeat < kRivalRepeats; ++repeat) {
    if (bench_.seconds() > bounds_.seconds_max) {
      result.why_not = "there was no time left";
      result_.out_of_time = true;
      return {};
    }
    Result<IoSample> ours = std::unexpected(Error{});
    if (repeat % 2 == 0) ours = bench_.run(point, direction, bytes);
    const Result<TuneRivalSample> theirs = bench_.run_rival(point, direction, bytes);
    if (!theirs) {
      if (theirs.error().code == ErrorCode::interrupted) return std::unexpected(theirs.error());
      result.why_not = theirs.error().detail;
      return {};
    }
    if (repeat % 2 == 1) ours = bench_.run(point, direction, bytes);
    if (!ours) return std::unexpected(ours.error());
    const double gigabytes = static_cast<double>(theirs->bytes) / kGiga;
    result.note = theirs->note;
    result.gb_per_s.push_back(gigabytes / theirs->seconds);
    result.cpu_seconds_per_gb.push_back(theirs->cpu_seconds / gigabytes);
    result.headrace_gb_per_s.push_back(static_cast<double>(ours->bytes) / kGiga / ours->seconds);
  }
  return {};
}

}  // namespace headrace::diagnose
