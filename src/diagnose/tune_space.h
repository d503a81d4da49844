// SPDX-License-Identifier: Apache-2.0
// Which settings are worth a measurement: all combinations, less those that come to the same.
// Any thread; pure.
// Owns nothing.
#pragma once

#include <cstdint>
#include <vector>

#include <headrace/tune.h>

namespace headrace::diagnose {

// What the built-in lists depend on.
struct TuneGround {
  std::vector<EngineKind> engines;  // that work here
  uint32_t processors = 1;
  uint64_t io_bytes = 0;
};

// The lists, filled in.
[[nodiscard]] TuneSpace complete(const TuneSpace& space, const TuneGround& ground);
// More in flight than a handle lets through comes to the same as less, so of such depths the least is kept; so are blocks no
// longer than what is moved. Only of built-in lists: what the user named is tried as named. Without duplicates.
[[nodiscard]] std::vector<TunePoint> points_of(const TuneSpace& asked, const TuneGround& ground);
// How many these would be, without building them. No list may have more than kTunePointsMax values.
[[nodiscard]] uint64_t count_points(const TuneSpace& asked, const TuneGround& ground);
// Half and twice its block and depth, and without registered memory, as far as the user left these open. Ways to submit, which a
// handle has no settings for, are tried only where they are named.
[[nodiscard]] std::vector<TunePoint> neighbours_of(const TunePoint& point, const TuneSpace& asked, uint64_t io_bytes);

}  // namespace headrace::diagnose
