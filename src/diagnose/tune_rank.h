// SPDX-License-Identifier: Apache-2.0
// Which points are the best by what was measured of them so far.
// Any thread; pure.
// Owns nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <headrace/tune.h>

namespace headrace::diagnose {

inline constexpr double kTie = 0.98;  // no rate on a shared disk is surer than that

[[nodiscard]] inline std::optional<TuneTrack>& track_of(TunedPoint& point, IoDirection direction) {
  return direction == IoDirection::read ? point.read : point.write;
}
[[nodiscard]] inline const std::optional<TuneTrack>& track_of(const TunedPoint& point, IoDirection direction) {
  return direction == IoDirection::read ? point.read : point.write;
}
// None where the point was not measured in that round.
[[nodiscard]] const TuneRepeats* repeats_of(const TunedPoint& point, IoDirection direction, TuneRound round);

[[nodiscard]] double median_rate(const TunedPoint& point, IoDirection direction, TuneRound round);  // 0: not measured
[[nodiscard]] double median_cost(const TunedPoint& point, IoDirection direction, TuneRound round);

// Points by their rate, the greatest first; of those within 2 % of the first one, the one that costs the least CPU time leads.
[[nodiscard]] std::vector<uint32_t> ranked(std::span<const TunedPoint> points, std::span<const uint32_t> candidates,
                                           IoDirection direction, TuneRound round);

// The best `count` by the first round and, of those that were in it, the second. One short repeat errs by more than good settings
// differ, but each block size, depth and so on was in many of them: what a point's own settings came to elsewhere counts
// as much as its own repeat.
[[nodiscard]] std::vector<uint32_t> promising(std::span<const TunedPoint> points, IoDirection direction, size_t count);

}  // namespace headrace::diagnose
