// SPDX-License-Identifier: Apache-2.0
// A tuning on a real disk, small enough for a test, and what it refuses.
#include <headrace/tune.h>

#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <headrace/profile.h>

#include "base/units.h"
#include "tests/support/files.h"

namespace headrace {
namespace {

using base::kKiB;
using base::kMiB;
using nlohmann::json;
using test::TestFolder;

TuneOptions small(const std::string& folder) {
  return {.folders = {folder},
          .space = {.engines = {EngineKind::posix, EngineKind::automatic},
                    .block_bytes = {256 * kKiB},
                    .queue_depths = {4},
                    .workers = {1}},
          .io_bytes = kMiB,
          .written_bytes_max = 400 * kMiB,
          .read_bytes_max = 400 * kMiB};
}

TEST(Tune, BothDirectionsHaveABestWhoseSettingsAHandleTakes) {
  const TestFolder folder;
  const Result<TuneResult> result = tune(small(folder.path()));
  ASSERT_TRUE(result) << result.error().message();
  const json document = json::parse(to_json(*result));
  for (const char* const use : {"read", "write", "both"}) {
    ASSERT_TRUE(document.at(use).is_object()) << use;
    EXPECT_GT(document.at(use).at("aio").at("block_size").get<uint64_t>(), 0U);
    EXPECT_TRUE(document.at(use).at("aio").at("single_submit").is_boolean());
  }
  EXPECT_GE(document.at("points").size(), 3U);  // and what lies beside the best
  EXPECT_TRUE(document.at("points").at(0).at("is_default").get<bool>());
  const std::string path = folder.path() + "/profile.json";
  std::ofstream(path) << document.dump();
  for (const ProfileUse use : {ProfileUse::read, ProfileUse::write, ProfileUse::both}) {
    const Result<HandleOptions> options = read_profile(path, use);
    ASSERT_TRUE(options) << options.error().message();
    const Result<Handle> handle = Handle::create(*options);
    ASSERT_TRUE(handle) << handle.error().message();
    EXPECT_EQ(handle->facts().block_bytes, options->block_bytes);
  }
}

TEST(Tune, WritesNoMoreThanItsPlanSays) {
  const TestFolder folder;
  const TuneOptions options = small(folder.path());
  const Result<TunePlan> plan = plan_tune(options);
  ASSERT_TRUE(plan) << plan.error().message();
  const Result<TuneResult> result = tune(options);
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_GT(result->written_bytes, 0U);
  EXPECT_LE(result->written_bytes, plan->written_bytes_max);
  EXPECT_LE(result->read_bytes, plan->read_bytes_max);
}

TEST(Tune, ReadsAloneWriteOnlyWhatIsRead) {
  const TestFolder folder;
  TuneOptions options = small(folder.path());
  options.directions = {IoDirection::read};
  const Result<TunePlan> plan = plan_tune(options);
  const Result<TuneResult> result = tune(options);
  ASSERT_TRUE(plan && result) << result.error().message();
  EXPECT_EQ(plan->written_bytes_max, kMiB);
  EXPECT_EQ(result->written_bytes, kMiB);
  const json document = json::parse(to_json(*result));
  EXPECT_TRUE(document.at("write").is_null());
  EXPECT_TRUE(document.at("both").is_null());
}

TEST(Tune, WhatTheOtherProgramSaysStandsBesideTheBest) {
  const TestFolder folder;
  TuneOptions options = small(folder.path());
  options.directions = {IoDirection::read};
  options.rival = {.name = "other", .run = [](const TuneRivalTask& task) -> Result<TuneRivalSample> {
                     EXPECT_EQ(task.paths.size(), 1U);
                     EXPECT_EQ(task.bytes, kMiB);
                     return TuneRivalSample{.seconds = 1, .cpu_seconds = 0.5, .bytes = task.bytes};
                   }};
  const Result<TuneResult> result = tune(options);
  ASSERT_TRUE(result) << result.error().message();
  ASSERT_TRUE(result->read_rival);
  EXPECT_EQ(result->read_rival->name, "other");
  EXPECT_EQ(result->read_rival->gb_per_s.size(), 3U);
}

TEST(Tune, StoppedAtOnceItIsInterrupted) {
  const TestFolder folder;
  const Result<TuneResult> result = tune(small(folder.path()), {.interrupted = [] { return true; }});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::interrupted);
}

TEST(Tune, OptionsThatMakeNoSenseAreRefusedBeforeAnythingIsWritten) {
  const TestFolder folder;
  const auto refused = [&](auto change) {
    TuneOptions options = small(folder.path());
    change(options);
    const Result<TunePlan> plan = plan_tune(options);
    return !plan && plan.error().code == ErrorCode::invalid_argument;
  };
  EXPECT_FALSE(refused([](TuneOptions&) {}));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.folders.clear(); }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.io_bytes = UINT64_MAX / 2; }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.directions.clear(); }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.loops = 0; }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.seconds_max = 0; }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.space.block_bytes = {1000}; }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.space.queue_depths = {0}; }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.space.workers = {65}; }));
  EXPECT_TRUE(refused([](TuneOptions& o) { o.written_bytes_max = kMiB; }));
}

}  // namespace
}  // namespace headrace
