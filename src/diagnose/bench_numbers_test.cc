// SPDX-License-Identifier: Apache-2.0
// Spreads and patterns: what every result and every validation rests on.
#include <array>
#include <numeric>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

#include <headrace/benchmark.h>

#include "base/little_endian.h"
#include "diagnose/bench_pattern.h"

namespace headrace {
namespace {

using diagnose::fill_pattern;
using diagnose::find_difference;

std::vector<double> one_to(size_t count) {
  std::vector<double> values(count);
  std::iota(values.rbegin(), values.rend(), 1.0);  // in descending order: it must not matter
  return values;
}

TEST(Spread, OfNothingIsZero) {
  const Spread spread = spread_of({});
  EXPECT_EQ(spread.count, 0U);
  EXPECT_EQ(spread.median, 0);
  EXPECT_FALSE(spread.sure);
}

TEST(Spread, MedianOfAnEvenCountLiesBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(spread_of(one_to(4)).median, 2.5);
  EXPECT_EQ(spread_of(one_to(5)).median, 3);
}

TEST(Spread, FewerThanSixValuesGiveNoSureInterval) {
  for (size_t count = 1; count < 6; ++count) {
    const Spread spread = spread_of(one_to(count));
    EXPECT_FALSE(spread.sure) << count;
    EXPECT_EQ(spread.low, spread.min);
    EXPECT_EQ(spread.high, spread.max);
  }
}

// The ranks are those of the binomial distribution, as tables of the sign test have them.
TEST(Spread, IntervalOfMoreValuesHasTheRanksOfTheSignTest) {
  struct Row {
    size_t count;
    double low, high;
  };
  for (const Row& row : std::array<Row, 5>{{{6, 1, 6}, {7, 1, 7}, {9, 2, 8}, {20, 6, 15}, {100, 40, 61}}}) {
    const Spread spread = spread_of(one_to(row.count));
    EXPECT_TRUE(spread.sure) << row.count;
    EXPECT_EQ(spread.low, row.low) << row.count;
    EXPECT_EQ(spread.high, row.high) << row.count;
  }
}

TEST(Spread, IntervalOfThousandsOfValuesIsNarrowAndHoldsTheMedian) {
  const Spread spread = spread_of(one_to(10'000));
  EXPECT_TRUE(spread.sure);
  EXPECT_NEAR(spread.low, 4902, 2);
  EXPECT_NEAR(spread.high, 5099, 2);
}

TEST(Pattern, PartsOfItAreWhatTheWholeIs) {
  std::vector<std::byte> whole(1003);
  fill_pattern(whole, 7, 0);
  std::vector<std::byte> part(403);
  fill_pattern(part, 7, 600);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 600));
  EXPECT_EQ(find_difference(part, 7, 600), std::nullopt);
}

TEST(Pattern, EveryChangedByteIsFound) {
  std::vector<std::byte> bytes(101);
  fill_pattern(bytes, 9, 64);
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{1};
    EXPECT_EQ(find_difference(bytes, 9, 64), at);
    bytes[at] ^= std::byte{1};
  }
}

TEST(Pattern, OtherKeysAndOtherPlacesAreOtherBytes) {
  std::vector<std::byte> bytes(4096);
  fill_pattern(bytes, 1, 0);
  EXPECT_LT(find_difference(bytes, 2, 0).value_or(4096), 8U);
  EXPECT_LT(find_difference(bytes, 1, 4096).value_or(4096), 8U);
}

TEST(Pattern, NoWordComesTwice) {
  std::vector<std::byte> bytes(1 << 20);
  fill_pattern(bytes, diagnose::random_key(), 0);
  std::unordered_set<uint64_t> words;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t))
    words.insert(base::load_little<uint64_t>(bytes, at));
  EXPECT_EQ(words.size(), bytes.size() / sizeof(uint64_t));
}

}  // namespace
}  // namespace headrace
