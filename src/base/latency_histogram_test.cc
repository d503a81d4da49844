// SPDX-License-Identifier: Apache-2.0
// Percentiles are within the width of a bucket.
#include "base/latency_histogram.h"

#include <random>

#include <gtest/gtest.h>

#include "base/align.h"

namespace headrace::base {
namespace {

TEST(LatencyHistogram, EveryValueLiesInItsBucketWithin7Percent) {
  std::mt19937_64 random(1);
  uint32_t last = 0;
  for (uint64_t ns = 0; ns < 5000; ++ns) {
    const uint32_t bucket = LatencyHistogram::bucket_of(ns);
    ASSERT_GE(bucket, last);
    last = bucket;
  }
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t ns = random() >> (13 + random() % 51);
    const uint64_t edge = LatencyHistogram::upper_edge(LatencyHistogram::bucket_of(ns));
    ASSERT_GE(edge, ns);
    ASSERT_LE(edge - ns, ns / 14);
  }
  EXPECT_EQ(LatencyHistogram::bucket_of(UINT64_MAX), LatencyHistogram::kBuckets - 1);
}

TEST(LatencyHistogram, PercentilesOfNothingAreZero) {
  EXPECT_EQ(LatencyHistogram::percentile(LatencyHistogram::Counts{}, 500), 0u);
}

TEST(LatencyHistogram, PercentilesOfAThousandAreWhereTheyBelong) {
  LatencyHistogram histogram;
  for (uint64_t ns = 1; ns <= 1000; ++ns)
    histogram.record(ns * 1000);
  LatencyHistogram::Counts counts = {};
  histogram.add_to(counts);
  for (const uint64_t per_mille : {1u, 500u, 900u, 990u, 999u, 1000u}) {
    const uint64_t value = LatencyHistogram::percentile(counts, per_mille);
    EXPECT_GE(value, per_mille * 1000);
    EXPECT_LE(value, per_mille * 1000 * 108 / 100);
  }
}

TEST(Align, RoundsToPowersOfTwoIn64Bits) {
  EXPECT_EQ(align_down(4097, 4096), 4096u);
  EXPECT_EQ(align_up(4097, 4096), 8192u);
  EXPECT_EQ(align_up(4096, 4096), 4096u);
  EXPECT_EQ(align_up(0, 4096), 0u);
  EXPECT_EQ(align_down(UINT64_MAX, 4096), UINT64_MAX - 4095);
  EXPECT_TRUE(is_aligned(uint64_t{1} << 63, 4096));
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_FALSE(is_power_of_two(12));
  EXPECT_TRUE(is_power_of_two(uint64_t{1} << 63));
}

}  // namespace
}  // namespace headrace::base
