// SPDX-License-Identifier: Apache-2.0
// Medians, and intervals around them that assume nothing of the distribution.
// Any thread; pure.
// Owns nothing.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <headrace/benchmark.h>

namespace headrace {
namespace {

constexpr double kMissMax = 0.05;
constexpr double kNormalMiss = 1.96;     // standard deviations that the normal distribution leaves 5 % outside of
constexpr size_t kExactCountMax = 1000;  // beyond, 2^-count is nothing in a double, and the normal distribution as good

// The true median lies below the value of rank `rank` (from 1) with the probability that fewer than `rank` of `count` fair coins
// show heads, and as likely above the value of that rank from the other end. The greatest rank for which both together stay
// within 5 %; 0: there is none.
size_t rank_of_interval(size_t count) {
  if (count > kExactCountMax) {
    const auto number = static_cast<double>(count);
    return static_cast<size_t>((number - kNormalMiss * std::sqrt(number)) / 2);
  }
  double one = std::pow(0.5, static_cast<double>(count));  // of exactly `rank` heads
  double below = 0;
  size_t rank = 0;
  while (rank < count / 2) {
    below += one;
    if (2 * below > kMissMax) break;
    one *= static_cast<double>(count - rank) / static_cast<double>(rank + 1);
    ++rank;
  }
  return rank;
}

}  // namespace

Spread spread_of(std::span<const double> values) {
  if (values.empty()) return {};
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const size_t count = sorted.size();
  Spread spread = {.count = count, .min = sorted.front(), .max = sorted.back()};
  spread.median = count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
  const size_t rank = rank_of_interval(count);
  spread.sure = rank != 0;
  spread.low = sorted[rank != 0 ? rank - 1 : 0];
  spread.high = sorted[rank != 0 ? count - rank : count - 1];
  return spread;
}

}  // namespace headrace
