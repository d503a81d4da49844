// SPDX-License-Identifier: Apache-2.0
// next_block: single cuts written out, and millions of random runs held against the oracle.
#include "plan/block_plan.h"

#include <random>

#include <gtest/gtest.h>

#include "tests/support/block_plan_oracle.h"

namespace headrace::plan {
namespace {

using test::plan_fault;
using test::PlanCase;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr Geometry kDirect = {.direct = true,
                              .memory_align_bytes = 512,
                              .granule_bytes = 4096,
                              .block_bytes = 4 * kMiB,
                              .staged_block_bytes = kMiB};
constexpr Geometry kBuffered = {.block_bytes = 4 * kMiB, .staged_block_bytes = kMiB};

void expect_block(const PlannedBlock& block, const PlannedBlock& wanted) {
  EXPECT_EQ(block.begin, wanted.begin);
  EXPECT_EQ(block.end, wanted.end);
  EXPECT_EQ(block.io_begin, wanted.io_begin);
  EXPECT_EQ(block.io_end, wanted.io_end);
  EXPECT_EQ(block.direct, wanted.direct);
  EXPECT_EQ(block.staged, wanted.staged);
}

TEST(BlockPlan, RaggedReadIsStagedInWholeGranules) {
  const PlannedBlock block = next_block(kDirect, Direction::read, Straight::if_buffered,
                                        {.position = 5000, .end = 9000, .region_end = 9000, .address = 64});
  expect_block(block, {.begin = 5000, .end = 9000, .io_begin = 4096, .io_end = 12288, .direct = true, .staged = true});
}

TEST(BlockPlan, RaggedWriteHeadIsBufferedUpToTheGranule) {
  const PlannedBlock block = next_block(kDirect, Direction::write, Straight::if_buffered,
                                        {.position = 5000, .end = kMiB, .region_end = kMiB, .address = 64});
  EXPECT_EQ(block.end, 8192u);
  EXPECT_FALSE(block.direct);
}

TEST(BlockPlan, WriteTailBelowAGranuleIsBuffered) {
  const PlannedBlock block = next_block(kDirect, Direction::write, Straight::if_huge,
                                        {.position = 8192, .end = 8193, .region_end = 8193, .address = 0});
  expect_block(block, {.begin = 8192, .end = 8193, .io_begin = 8192, .io_end = 8193, .direct = false, .staged = false});
}

TEST(BlockPlan, AlignedHugeMemoryGoesStraightAndDirect) {
  const PlannedBlock block = next_block(kDirect, Direction::write, Straight::if_huge,
                                        {.position = 0, .end = 9 * kMiB, .region_end = 9 * kMiB, .address = 2 * kMiB});
  expect_block(block,
               {.begin = 0, .end = 4 * kMiB, .io_begin = 0, .io_end = 4 * kMiB, .direct = true, .staged = false});
}

TEST(BlockPlan, MisalignedMemoryIsStagedAlsoOnHugePages) {
  const PlannedBlock block = next_block(kDirect, Direction::write, Straight::if_huge,
                                        {.position = 0, .end = 9 * kMiB, .region_end = 9 * kMiB, .address = 64});
  expect_block(block, {.begin = 0, .end = kMiB, .io_begin = 0, .io_end = kMiB, .direct = true, .staged = true});
}

TEST(BlockPlan, CopyNeverFallsToBufferedWhereMemoryIsMisaligned) {
  const PlannedBlock block = next_block(kDirect, Direction::read, Straight::always,
                                        {.position = 0, .end = kMiB, .region_end = kMiB, .address = 64});
  EXPECT_FALSE(block.direct);
  EXPECT_FALSE(block.staged);
}

TEST(BlockPlan, LaterBlocksEndAtMultiplesOfTheBlock) {
  const PlannedBlock block = next_block(kBuffered, Direction::read, Straight::if_buffered,
                                        {.position = 100, .end = 9 * kMiB, .region_end = 9 * kMiB, .address = 1});
  EXPECT_EQ(block.end, 4 * kMiB);
}

TEST(BlockPlan, SmallNeighboursAreGatheredInOneStagedBlock) {
  const PlannedBlock block = next_block(kBuffered, Direction::write, Straight::if_buffered,
                                        {.position = 0, .end = 3 * kMiB, .region_end = 100, .address = 1});
  expect_block(block, {.begin = 0, .end = kMiB, .io_begin = 0, .io_end = kMiB, .direct = false, .staged = true});
}

TEST(BlockPlan, PositionsNearTheLargestOffsetDoNotWrap) {
  constexpr uint64_t kEnd = INT64_MAX;
  for (const Geometry& geometry : {kDirect, kBuffered}) {
    for (Direction direction : {Direction::read, Direction::write}) {
      for (uint64_t length : {uint64_t{1}, uint64_t{4096}, uint64_t{4097}, kMiB + 1}) {
        const PlanCase test = {.geometry = geometry,
                               .direction = direction,
                               .straight = Straight::if_buffered,
                               .begin = kEnd - length,
                               .regions = {{.address = 64, .bytes = length}}};
        EXPECT_EQ(plan_fault(test), std::nullopt);
      }
    }
  }
}

// Numbers that are interesting more often than random ones: near multiples of the sizes that the plan knows.
uint64_t draw_size(std::mt19937_64& random, uint64_t max) {
  const uint64_t scale = uint64_t{1} << (random() % 24);
  uint64_t value = random() % (4 * scale) + 1;
  if (random() % 2 == 0) value = value / 512 * 512 + random() % 3 - 1;
  return std::clamp<uint64_t>(value, 1, max);
}

PlanCase draw_case(std::mt19937_64& random) {
  PlanCase test;
  Geometry& geometry = test.geometry;
  geometry.direct = random() % 4 != 0;
  geometry.memory_align_bytes = 1U << (random() % 13);
  geometry.granule_bytes = 4096U << (random() % 5);
  geometry.block_bytes = geometry.granule_bytes * (random() % 65 + 1);
  geometry.staged_block_bytes = geometry.granule_bytes * (random() % 17 + 1);
  test.direction = random() % 2 == 0 ? Direction::read : Direction::write;
  test.straight = static_cast<Straight>(random() % 4);
  test.begin = random() % 8 == 0 ? (uint64_t{1} << 40) + draw_size(random, 1 << 20) : draw_size(random, 1 << 24) - 1;
  const uint64_t regions = random() % 3 == 0 ? random() % 12 + 1 : 1;
  const uint64_t bytes_max = 256 * std::min(geometry.block_bytes, geometry.staged_block_bytes);
  for (uint64_t i = 0; i < regions; ++i) {
    uint64_t address = random() % (uint64_t{1} << 40);
    if (random() % 3 == 0) address = address / 4096 * 4096;
    if (random() % 3 == 0) address = address / 4096 * 4096 + test.begin % 4096;
    test.regions.push_back({.address = address, .bytes = draw_size(random, bytes_max)});
  }
  return test;
}

TEST(BlockPlan, MillionsOfRandomRunsObeyEveryRule) {
#if defined(HEADRACE_SANITIZED) || !defined(NDEBUG)
  constexpr uint64_t kCases = 300'000;
#else
  constexpr uint64_t kCases = 2'000'000;
#endif
  for (uint64_t seed = 0; seed < kCases / 1000; ++seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 1000; ++i) {
      const std::optional<std::string> fault = plan_fault(draw_case(random));
      ASSERT_EQ(fault, std::nullopt) << *fault << " (seed " << seed << ", case " << i << ")";
    }
  }
}

}  // namespace
}  // namespace headrace::plan
