// SPDX-License-Identifier: Apache-2.0
// The search on a simulated disk: what it finds in noise, and that it keeps within its bounds.
#include "diagnose/tune_search.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "diagnose/tune_rank.h"
#include "diagnose/tune_space.h"

namespace headrace::diagnose {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kIoBytes = 400 * kMiB;

const TuneGround kGround = {
    .engines = {EngineKind::uring, EngineKind::aio, EngineKind::posix}, .processors = 4, .io_bytes = kIoBytes};

TuneBounds both_directions() {
  return {.directions = {IoDirection::read, IoDirection::write},
          .io_bytes = kIoBytes,
          .files = 1,
          .loops = 1,
          .seconds_max = 60,
          .bytes_max = {11'000'000'000, 8'000'000'000},
          .rival = false};
}

std::vector<TunePoint> points_with_default(const TuneSpace& space = {}) {
  std::vector<TunePoint> points = points_of(space, kGround);
  points.insert(points.begin(), TunePoint{});
  return points;
}

// A disk whose rates are known. Time is what the repeats take, and nobody waits for it.
class SimulatedDisk final : public TuneBench {
 public:
  double noise = 0.05;
  double scale = 1;  // of all rates
  EngineKind broken = EngineKind::null;
  uint64_t interrupted_after_runs = UINT64_MAX;
  std::array<uint64_t, 2> moved_bytes = {};
  uint64_t runs = 0;
  std::map<uint64_t, uint64_t> runs_by_bytes;

  // GB/s. Reads like large blocks in depth from one worker, writes small ones from two.
  [[nodiscard]] double rate(const TunePoint& asked, IoDirection direction) const {
    TunePoint point = asked;
    if (point.engine == EngineKind::automatic) point = {EngineKind::uring, 4 * kMiB, 8, 4};
    const bool reads = direction == IoDirection::read;
    const auto away = [](double value, double best) { return std::abs(std::log2(value / best)); };
    double value = reads ? 4.0 : 3.0;
    value *= 1 - 0.06 * away(static_cast<double>(point.block_bytes), reads ? 4.0 * kMiB : 1.0 * kMiB);
    value *= 1 - 0.05 * away(point.queue_depth, 32);
    value *= 1 - 0.08 * away(point.workers, reads ? 1 : 2);
    if (point.engine == EngineKind::posix) value *= 0.8;
    if (point.engine == EngineKind::aio) value *= 0.95;
    if (point.order == RequestOrder::in_batches) value *= 0.7;
    if (point.request == RequestSize::block) value *= 0.9;
    return value * scale;
  }

  Result<IoSample> run(const TunePoint& point, IoDirection direction, uint64_t bytes) override {
    if (++runs > interrupted_after_runs)
      return std::unexpected(Error{.code = ErrorCode::interrupted, .operation = "tune"});
    if (point.engine == broken)
      return std::unexpected(Error{.code = ErrorCode::unavailable, .operation = "tune", .detail = "broken"});
    ++runs_by_bytes[bytes];
    moved_bytes[static_cast<size_t>(direction)] += bytes;
    std::normal_distribution<double> error(0, noise);
    const double gb_per_s = rate(point, direction) * std::max(0.2, 1 + error(random_));
    const double seconds = static_cast<double>(bytes) / 1e9 / gb_per_s;
    now_ += seconds + 0.002;
    const double cost = point.registered == Ladder::never ? 0.006 : 0.003;
    return IoSample{.seconds = seconds, .cpu_seconds = cost * static_cast<double>(bytes) / 1e9, .bytes = bytes};
  }
  void forget() override {}
  Result<TuneRivalSample> run_rival(const TunePoint& point, IoDirection direction, uint64_t bytes) override {
    moved_bytes[static_cast<size_t>(direction)] += bytes;
    const double seconds = static_cast<double>(bytes) / 1e9 / rate(point, direction);
    now_ += seconds;
    return TuneRivalSample{.seconds = 2 * seconds, .cpu_seconds = seconds, .bytes = bytes};
  }
  [[nodiscard]] double seconds() const override { return now_; }
  void expect(uint64_t) override {}
  void seed(uint64_t value) { random_.seed(value); }

 private:
  std::mt19937_64 random_{1};
  double now_ = 0;
};

double best_rate(const SimulatedDisk& disk, IoDirection direction) {
  double best = 0;
  for (const TunePoint& point : points_with_default())
    best = std::max(best, disk.rate(point, direction));
  return best;
}

TEST(TuneSearch, FindsWithinThreePercentOfTheBestOfAnExhaustiveSweepInNoise) {
  constexpr uint64_t kTrials = 100;
  std::array<double, 2> sums = {};
  std::array<uint64_t, 2> within = {};
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    SimulatedDisk disk;
    disk.seed(trial);
    TuneSearch search(both_directions(), {}, points_with_default(), disk);
    ASSERT_TRUE(search.run());
    const TuneResult& result = search.result();
    for (const IoDirection direction : {IoDirection::read, IoDirection::write}) {
      const uint32_t best = (direction == IoDirection::read ? result.read : result.write)->point;
      const double ratio = disk.rate(result.points[best].point, direction) / best_rate(disk, direction);
      sums[static_cast<size_t>(direction)] += ratio;
      within[static_cast<size_t>(direction)] += ratio >= 0.97 ? 1 : 0;
      EXPECT_GE(ratio, 0.85) << trial;
    }
  }
  // No search that looks at each point once can be right each time where one look errs by 5 %.
  for (const size_t direction : {size_t{0}, size_t{1}}) {
    EXPECT_GE(sums[direction] / kTrials, 0.98);
    EXPECT_GE(within[direction], kTrials * 85 / 100);
  }
}

TEST(TuneSearch, FindsTheVeryBestWithoutNoise) {
  SimulatedDisk disk;
  disk.noise = 0;
  TuneSearch search(both_directions(), {}, points_with_default(), disk);
  ASSERT_TRUE(search.run());
  const TuneResult& result = search.result();
  const TunePoint& read = result.points[result.read->point].point;
  const TunePoint& write = result.points[result.write->point].point;
  EXPECT_EQ(read, (TunePoint{EngineKind::uring, 4 * kMiB, 32, 1}));
  EXPECT_EQ(write, (TunePoint{EngineKind::uring, kMiB, 32, 2}));
  EXPECT_EQ(result.read->gb_per_s.count, kFinalRepeats);
  EXPECT_GT(*result.read->by_default, 1);
}

TEST(TuneSearch, BothIsTheGreatestSumAmongThoseMeasuredInBothDirections) {
  SimulatedDisk disk;
  disk.noise = 0;
  TuneSearch search(both_directions(), {}, points_with_default(), disk);
  ASSERT_TRUE(search.run());
  const TuneResult& result = search.result();
  ASSERT_TRUE(result.both);
  double greatest = 0;
  for (const TunedPoint& point : result.points) {
    if (repeats_of(point, IoDirection::read, TuneRound::last) == nullptr) continue;
    greatest =
        std::max(greatest, disk.rate(point.point, IoDirection::read) + disk.rate(point.point, IoDirection::write));
  }
  EXPECT_NEAR(result.both->read_gb_per_s + result.both->write_gb_per_s, greatest, 0.02 * greatest);
}

TEST(TuneSearch, TrafficKeepsWithinItsBounds) {
  for (const uint32_t loops : {1U, 3U}) {
    for (const bool rival : {false, true}) {
      SimulatedDisk disk;
      TuneBounds bounds = both_directions();
      bounds.loops = loops;
      bounds.rival = rival;
      TuneSearch search(bounds, {}, points_with_default(), disk);
      ASSERT_TRUE(search.run());
      // The files are filled with as much as the largest repeat.
      const uint64_t largest = disk.runs_by_bytes.rbegin()->first;
      EXPECT_LE(disk.moved_bytes[0], bounds.bytes_max[0]);
      EXPECT_LE(disk.moved_bytes[1] + largest, bounds.bytes_max[1]);
      EXPECT_GT(disk.moved_bytes[1], bounds.bytes_max[1] / 2);  // and what is allowed is used
    }
  }
}

TEST(TuneSearch, OfAFewNamedPointsOneRepeatDoesNotTakeTheWholeBudget) {
  SimulatedDisk disk;
  TuneBounds bounds = both_directions();
  bounds.io_bytes = uint64_t{100} << 30;
  const TuneSpace space = {.engines = {EngineKind::uring}, .block_bytes = {kMiB}, .queue_depths = {8}, .workers = {1}};
  TuneSearch search(bounds, space, points_with_default(space), disk);
  ASSERT_TRUE(search.run());
  EXPECT_LE(disk.moved_bytes[0], bounds.bytes_max[0]);
  EXPECT_LE(disk.moved_bytes[1] + disk.runs_by_bytes.rbegin()->first, bounds.bytes_max[1]);
}

TEST(TuneSearch, TooFewBytesForAllPointsAreTold) {
  TuneBounds bounds = both_directions();
  bounds.bytes_max[1] = 100 * kMiB;
  const TuneSizing sizing = sizes_for(73, bounds, IoDirection::write);
  EXPECT_FALSE(sizing.sizes);
  bounds.bytes_max[1] = sizing.least_bytes;
  EXPECT_TRUE(sizes_for(73, bounds, IoDirection::write).sizes);
}

TEST(TuneSearch, ASlowDeviceGetsShorterRepeatsAndTheTimeIsKept) {
  SimulatedDisk disk;
  disk.scale = 0.02;  // 80 MB/s
  TuneBounds bounds = both_directions();
  bounds.rival = true;
  TuneSearch search(bounds, {}, points_with_default(), disk);
  ASSERT_TRUE(search.run());
  const TuneResult& result = search.result();
  EXPECT_TRUE(result.out_of_time);
  EXPECT_TRUE(result.read && result.write && result.both);
  EXPECT_LE(disk.seconds(), bounds.seconds_max + 5);
}

TEST(TuneSearch, NobodyWinsTheLastRoundBeforeAllHadTheirTurn) {
  bool some_unconfirmed = false;
  for (const double scale : {0.003, 0.01, 0.02, 0.05, 0.2, 1.0}) {
    SimulatedDisk disk;
    disk.scale = scale;
    TuneSearch search(both_directions(), {}, points_with_default(), disk);
    ASSERT_TRUE(search.run());
    const TuneResult& result = search.result();
    for (const IoDirection direction : {IoDirection::read, IoDirection::write}) {
      const TuneBest& best = *(direction == IoDirection::read ? result.read : result.write);
      some_unconfirmed |= !best.confirmed;
      EXPECT_EQ(repeats_of(result.points[best.point], direction, best.round)->gb_per_s.size(), best.gb_per_s.count);
      EXPECT_EQ(best.confirmed, best.round == TuneRound::last && best.gb_per_s.count == kFinalRepeats);
      if (best.round != TuneRound::last) continue;
      EXPECT_NE(repeats_of(result.points[0], direction, TuneRound::last), nullptr) << scale;  // the defaults are in it
    }
    if (scale >= 0.05) {
      EXPECT_TRUE(result.read->confirmed && result.write->confirmed) << scale;
    }
  }
  EXPECT_TRUE(some_unconfirmed);
}

TEST(TuneSearch, WhereTheDefaultsLeadWhatLiesBesideThemIsTried) {
  SimulatedDisk disk;
  disk.noise = 0;
  TuneBounds bounds = both_directions();
  bounds.by_default = {EngineKind::uring, 4 * kMiB, 8, 4};
  const TuneSpace space = {.engines = {EngineKind::posix}, .orders = {RequestOrder::in_batches}};  // slow
  TuneSearch search(bounds, space, points_with_default(space), disk);
  ASSERT_TRUE(search.run());
  const auto tried = [&](uint64_t block_bytes, uint32_t depth) {
    return std::ranges::any_of(search.result().points, [&](const TunedPoint& one) {
      return one.point.engine == EngineKind::uring && one.point.block_bytes == block_bytes &&
             one.point.queue_depth == depth;
    });
  };
  EXPECT_TRUE(tried(2 * kMiB, 8) && tried(8 * kMiB, 8) && tried(4 * kMiB, 4) && tried(4 * kMiB, 16));
}

TEST(TuneSearch, TooFewBytesToFillWhatIsReadAreTold) {
  TuneBounds bounds = both_directions();
  bounds.directions = {IoDirection::read};
  bounds.bytes_max[1] = 20'000;
  const TuneSizing sizing = sizes_for(73, bounds, IoDirection::read);
  EXPECT_FALSE(sizing.sizes);
  EXPECT_EQ(sizing.least_fill_bytes, 8 * kMiB);
  bounds.bytes_max[1] = sizing.least_fill_bytes;
  const auto sizes = sizes_for(73, bounds, IoDirection::read).sizes;
  ASSERT_TRUE(sizes);
  EXPECT_EQ(*std::ranges::min_element(sizes->bytes), 8 * kMiB);
  EXPECT_EQ(sizes->rival_bytes, 8 * kMiB);
}

TEST(TuneSearch, APointThatFailsIsRecordedAndDoesNotEndTheRun) {
  SimulatedDisk disk;
  disk.broken = EngineKind::aio;
  TuneSearch search(both_directions(), {}, points_with_default(), disk);
  ASSERT_TRUE(search.run());
  const TuneResult& result = search.result();
  EXPECT_TRUE(result.read && result.write);
  for (const TunedPoint& point : result.points) {
    if (point.point.engine != EngineKind::aio) continue;
    ASSERT_TRUE(point.read && point.read->error);
    EXPECT_EQ(point.read->error->detail, "broken");
    EXPECT_TRUE(point.read->rounds.empty());
  }
}

TEST(TuneSearch, WhereEveryPointFailsTheFirstReasonIsTold) {
  SimulatedDisk disk;
  disk.broken = EngineKind::uring;
  const TuneSpace space = {.engines = {EngineKind::uring}};
  std::vector<TunePoint> points = points_of(space, kGround);
  TuneSearch search(both_directions(), space, points, disk);
  const Status searched = search.run();
  ASSERT_FALSE(searched);
  EXPECT_EQ(searched.error().detail, "broken");
}

TEST(TuneSearch, InterruptedItTellsWhatIsKnown) {
  SimulatedDisk disk;
  disk.interrupted_after_runs = 20;
  TuneSearch search(both_directions(), {}, points_with_default(), disk);
  ASSERT_TRUE(search.run());
  EXPECT_TRUE(search.result().interrupted);
  EXPECT_TRUE(search.result().read);
  EXPECT_FALSE(search.result().write);
  EXPECT_FALSE(search.result().both);
}

TEST(TuneSearch, InterruptedBeforeAnythingIsKnownItIsAnError) {
  SimulatedDisk disk;
  disk.interrupted_after_runs = 0;
  TuneSearch search(both_directions(), {}, points_with_default(), disk);
  const Status searched = search.run();
  ASSERT_FALSE(searched);
  EXPECT_EQ(searched.error().code, ErrorCode::interrupted);
}

TEST(TuneSearch, OneDirectionAloneHasNoBoth) {
  SimulatedDisk disk;
  TuneBounds bounds = both_directions();
  bounds.directions = {IoDirection::write};
  TuneSearch search(bounds, {}, points_with_default(), disk);
  ASSERT_TRUE(search.run());
  EXPECT_FALSE(search.result().read);
  EXPECT_TRUE(search.result().write);
  EXPECT_FALSE(search.result().both);
  EXPECT_EQ(disk.moved_bytes[0], 0U);
}

TEST(TuneSearch, TheOtherProgramTakesTurnsWithTheBestSettings) {
  SimulatedDisk disk;
  TuneBounds bounds = both_directions();
  bounds.rival = true;
  disk.noise = 0;
  TuneSearch search(bounds, {}, points_with_default(), disk);
  ASSERT_TRUE(search.run());
  const TuneRivalResult& rival = *search.result().write_rival;
  ASSERT_EQ(rival.gb_per_s.size(), kRivalRepeats);
  EXPECT_NEAR(rival.headrace_gb_per_s[0] / rival.gb_per_s[0], 2, 0.01);
}

TEST(TuneRank, OfPointsWithinTwoPercentTheCheapestLeads) {
  const auto point = [](double rate, double cost) {
    TunedPoint tuned;
    tuned.read = TuneTrack{.rounds = {{.gb_per_s = {rate}, .cpu_seconds_per_gb = {cost}}}};
    return tuned;
  };
  const std::vector<TunedPoint> points = {point(3.0, 0.001), point(4.0, 0.01), point(3.95, 0.005), point(3.9, 0.001)};
  const std::vector<uint32_t> all = {0, 1, 2, 3};
  EXPECT_EQ(ranked(points, all, IoDirection::read, TuneRound::first), (std::vector<uint32_t>{2, 1, 3, 0}));
}

TEST(TuneSpace, SettingsThatComeToTheSameAreTriedOnce) {
  const std::vector<TunePoint> points = points_of({}, kGround);
  for (const TunePoint& point : points) {
    EXPECT_EQ(std::ranges::count(points, point), 1);
    // Sixteen blocks of 16 MiB are more than is let through.
    if (point.block_bytes == 16 * kMiB) {
      EXPECT_EQ(point.queue_depth, 8U);
    }
  }
}

TEST(TuneSpace, WhatTheUserNamedIsTriedAsNamed) {
  const TuneSpace space = {.engines = {EngineKind::posix},
                           .block_bytes = {kMiB, 8 * kMiB, kMiB},
                           .queue_depths = {32, 128},
                           .workers = {1, 2, 4, 8},
                           .orders = {RequestOrder::overlapping, RequestOrder::in_batches},
                           .requests = {RequestSize::file, RequestSize::block}};
  EXPECT_EQ(points_of(space, kGround).size(), 64U);  // as many as ds_nvme_tune's own space has
  const TunePoint point = points_of(space, kGround).front();
  EXPECT_TRUE(neighbours_of(point, space, kIoBytes).empty());
}

TEST(TuneSpace, PointsAreCountedAsTheyAreBuilt) {
  const TuneGround ground = {.engines = {EngineKind::uring, EngineKind::aio}, .processors = 4, .io_bytes = kMiB * 400};
  EXPECT_EQ(count_points({}, ground), points_of({}, ground).size());
  const TuneSpace named = {.queue_depths = {8, 8, 4096, 16}, .registered = {Ladder::never, Ladder::automatic}};
  EXPECT_EQ(count_points(named, ground), points_of(named, ground).size());
}

TEST(TuneSpace, MoreThanMemoryHoldsIsCountedWithoutOverflow) {
  TuneSpace space = {.engines = {EngineKind::posix, EngineKind::aio, EngineKind::uring, EngineKind::automatic},
                     .registered = {Ladder::never, Ladder::automatic, Ladder::required},
                     .orders = {RequestOrder::overlapping, RequestOrder::in_batches},
                     .requests = {RequestSize::file, RequestSize::block}};
  for (uint32_t i = 1; i <= kTunePointsMax; ++i) {
    space.block_bytes.push_back(i * kBlockBytesMin);
    space.queue_depths.push_back(i);
    space.workers.push_back(i);
  }
  EXPECT_EQ(count_points(space, {}), uint64_t{48} << 30);
}

TEST(TuneSpace, BlocksLongerThanWhatIsMovedAreLeftOut) {
  TuneGround ground = kGround;
  ground.io_bytes = 2 * kMiB;
  for (const TunePoint& point : points_of({}, ground))
    EXPECT_LE(point.block_bytes, 2 * kMiB);
}

}  // namespace
}  // namespace headrace::diagnose
