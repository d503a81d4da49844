// SPDX-License-Identifier: Apache-2.0
// See tune_rank.h.
// Any thread; pure.
// Owns nothing.
#include "diagnose/tune_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace headrace::diagnose {
namespace {

constexpr size_t kFactors = 7;
constexpr int kFittingPasses = 8;

std::array<uint64_t, kFactors> levels_of(const TunePoint& point) {
  return {static_cast<uint64_t>(point.engine),
          point.block_bytes,
          point.queue_depth,
          point.workers,
          static_cast<uint64_t>(point.registered),
          static_cast<uint64_t>(point.order),
          static_cast<uint64_t>(point.request)};
}

// Rates as sums of what each setting contributes, in logarithms: fitted by turns to what the others leave over.
class Effects {
 public:
  explicit Effects(std::span<const TunedPoint> points, std::span<const uint32_t> measured,
                   std::span<const double> rates) {
    for (const double rate : rates)
      mean_ += rate / static_cast<double>(rates.size());
    for (int pass = 0; pass < kFittingPasses; ++pass) {
      for (size_t factor = 0; factor < kFactors; ++factor)
        fit(factor, points, measured, rates);
    }
  }

  [[nodiscard]] double of(const TunePoint& point) const {
    const auto levels = levels_of(point);
    double sum = mean_;
    for (size_t factor = 0; factor < kFactors; ++factor) {
      const auto found = effects_[factor].find(levels[factor]);
      if (found != effects_[factor].end()) sum += found->second;
    }
    return sum;
  }

 private:
  void fit(size_t factor, std::span<const TunedPoint> points, std::span<const uint32_t> measured,
           std::span<const double> rates) {
    std::map<uint64_t, std::pair<double, double>> sums;  // by level: what is left over, and of how many
    for (size_t i = 0; i < measured.size(); ++i) {
      const TunePoint& point = points[measured[i]].point;
      const uint64_t level = levels_of(point)[factor];
      const auto known = effects_[factor].find(level);
      auto& [sum, count] = sums[level];
      sum += rates[i] - of(point) + (known == effects_[factor].end() ? 0 : known->second);
      count += 1;
    }
    for (const auto& [level, sum] : sums)
      effects_[factor][level] = sum.first / sum.second;
  }

  double mean_ = 0;
  std::array<std::map<uint64_t, double>, kFactors> effects_;
};

}  // namespace

double median_rate(const TunedPoint& point, IoDirection direction, TuneRound round) {
  const TuneRepeats* const repeats = repeats_of(point, direction, round);
  return repeats == nullptr ? 0 : spread_of(repeats->gb_per_s).median;
}

double median_cost(const TunedPoint& point, IoDirection direction, TuneRound round) {
  const TuneRepeats* const repeats = repeats_of(point, direction, round);
  return repeats == nullptr ? 0 : spread_of(repeats->cpu_seconds_per_gb).median;
}

const TuneRepeats* repeats_of(const TunedPoint& point, IoDirection direction, TuneRound round) {
  const std::optional<TuneTrack>& track = track_of(point, direction);
  if (!track) return nullptr;
  const auto found = std::ranges::find(track->rounds, round, &TuneRepeats::round);
  return found == track->rounds.end() || found->gb_per_s.empty() ? nullptr : &*found;
}

std::vector<uint32_t> ranked(std::span<const TunedPoint> points, std::span<const uint32_t> candidates,
                             IoDirection direction, TuneRound round) {
  std::vector<uint32_t> order;
  for (const uint32_t index : candidates) {
    const std::optional<TuneTrack>& track = track_of(points[index], direction);
    if (track && !track->error && repeats_of(points[index], direction, round) != nullptr) order.push_back(index);
  }
  const auto rate = [&](uint32_t index) { return median_rate(points[index], direction, round); };
  std::ranges::sort(order, [&](uint32_t a, uint32_t b) { return rate(a) != rate(b) ? rate(a) > rate(b) : a < b; });
  if (order.empty()) return order;
  const auto tied = std::ranges::find_if(order, [&](uint32_t i) { return rate(i) < kTie * rate(order.front()); });
  const auto cheapest = std::ranges::min_element(
      order.begin(), tied, {}, [&](uint32_t index) { return median_cost(points[index], direction, round); });
  std::rotate(order.begin(), cheapest, std::next(cheapest));
  return order;
}

std::vector<uint32_t> promising(std::span<const TunedPoint> points, IoDirection direction, size_t count) {
  std::vector<uint32_t> measured;
  std::vector<double> rates;
  bool second = false;
  for (uint32_t i = 0; i < points.size(); ++i) {
    const double rate = median_rate(points[i], direction, TuneRound::first);
    if (rate <= 0 || track_of(points[i], direction)->error) continue;
    measured.push_back(i);
    rates.push_back(std::log(rate));
    second = second || median_rate(points[i], direction, TuneRound::second) > 0;
  }
  const Effects effects(points, measured, rates);
  std::vector<std::pair<double, uint32_t>> scores;
  for (size_t i = 0; i < measured.size(); ++i) {
    const TunedPoint& point = points[measured[i]];
    double score = (rates[i] + effects.of(point.point)) / 2;
    if (second) {
      const double rate = median_rate(point, direction, TuneRound::second);
      if (rate <= 0) continue;
      score += std::log(rate);
    }
    scores.emplace_back(score, measured[i]);
  }
  std::ranges::sort(scores, std::ranges::greater{});
  std::vector<uint32_t> best;
  for (const auto& [score, index] : scores)
    if (best.size() < count) best.push_back(index);
  return best;
}

}  // namespace headrace::diagnose
