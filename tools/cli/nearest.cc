// SPDX-License-Identifier: Apache-2.0
#include "nearest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace headrace::cli {
namespace {

bool alike(char a, char b) { return a == b || ((a == '-' || a == '_') && (b == '-' || b == '_')); }

// Optimal string alignment distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j)
    cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = cost[i - 1][j - 1] + (alike(a[i - 1], b[j - 1]) ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && alike(a[i - 1], b[j - 2]) && alike(a[i - 2], b[j - 1]))
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string> candidates) {
  constexpr size_t kWordBytesMax = 100;  // longer ones are no slips of the finger
  if (word.size() > kWordBytesMax) return std::nullopt;
  std::optional<std::string_view> best;
  size_t best_distance = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const size_t d = candidate.size() > 2 * kWordBytesMax ? best_distance : distance(word, candidate);
    if (d >= best_distance) continue;
    best_distance = d;
    best = candidate;
  }
  return best;
}

}  // namespace headrace::cli
