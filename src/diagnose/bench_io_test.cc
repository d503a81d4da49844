// SPDX-License-Identifier: Apache-2.0
// Measurements: every byte is counted and, if asked for, compared; what is said about cold and durable is so.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <headrace/benchmark.h>

#include "base/units.h"
#include "os/fd.h"
#include "tests/support/files.h"
#include "tests/support/stage.h"

namespace headrace {
namespace {

using base::kKiB;
using base::kMiB;
using test::TestFolder;

constexpr uint64_t kBytes = 9 * kMiB + 4096;  // no multiple of the blocks below

BenchmarkFiles files_in(const std::string& folder, uint64_t bytes = kBytes, uint32_t files = 1) {
  Result<BenchmarkFiles> made =
      BenchmarkFiles::create({.folders = {folder}, .file_bytes = bytes, .files_per_folder = files});
  EXPECT_TRUE(made) << made.error().message();
  return *std::move(made);
}

void flip_byte(const BenchmarkFiles& files, uint32_t index, uint64_t offset) {
  const os::Fd file(::open(files.path_for_others(index).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file.is_open());
  char byte = 0;
  ASSERT_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  ASSERT_EQ(::fdatasync(file.get()), 0);
}

struct Shape {
  const char* name;
  IoSettings settings;
};

class IoShapes : public testing::TestWithParam<Shape> {};

TEST_P(IoShapes, MovesAndValidatesEveryByteBothWays) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path(), kBytes, 2);
  IoSettings settings = GetParam().settings;
  settings.validate = Validate::all_bytes;
  settings.repeats = 2;
  for (const IoDirection direction : {IoDirection::write, IoDirection::read}) {
    settings.direction = direction;
    const Result<IoResult> result = benchmark_io(files, settings);
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_EQ(result->totals.bytes, 4 * kBytes);  // two repeats of two files
    EXPECT_EQ(result->validated_bytes, 6 * kBytes);
    EXPECT_EQ(result->totals.failed, 0U);
    EXPECT_EQ(result->samples.size(), 2U);
    EXPECT_GT(result->gb_per_s.median, 0);
    EXPECT_GT(result->totals.latency_ns[0], 0U);
    EXPECT_LE(result->totals.latency_ns[0], result->totals.latency_ns[4]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, IoShapes,
    testing::Values(Shape{"Defaults", {}},
                    Shape{"BlockByBlock", {.block_bytes = 256 * kKiB, .queue_depth = 4, .request = RequestSize::block}},
                    Shape{"BlocksInBatches",
                          {.block_bytes = 256 * kKiB,
                           .queue_depth = 4,
                           .workers = 2,
                           .request = RequestSize::block,
                           .order = RequestOrder::in_batches}},
                    Shape{"Batches",
                          {.block_bytes = kMiB, .queue_depth = 2, .workers = 1, .order = RequestOrder::in_batches}},
                    Shape{"Buffered", {.direct = Ladder::never}}, Shape{"SmallPages", {.pages = PageKind::small}},
                    Shape{"Staged", {.copy = CopyMode::always}}, Shape{"Posix", {.engine = EngineKind::posix}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(IoBenchmark, RequestsAreCutAsTheSettingsSay) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path(), 8 * kMiB);
  const auto requests = [&](RequestSize request, RequestOrder order) {
    const Result<IoResult> result = benchmark_io(files, {.block_bytes = kMiB,
                                                         .queue_depth = 2,
                                                         .workers = 1,
                                                         .request = request,
                                                         .order = order,
                                                         .repeats = 1,
                                                         .warm_ups = 0});
    EXPECT_TRUE(result) << result.error().message();
    return result->totals.requests;
  };
  EXPECT_EQ(requests(RequestSize::file, RequestOrder::overlapping), 1U);
  EXPECT_EQ(requests(RequestSize::file, RequestOrder::in_batches), 4U);
  EXPECT_EQ(requests(RequestSize::block, RequestOrder::overlapping), 8U);
  EXPECT_EQ(requests(RequestSize::block, RequestOrder::in_batches), 8U);
}

TEST(IoBenchmark, AByteThatChangedOnDiskIsFoundByAValidatedRead) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path(), kBytes, 2);
  const IoSettings settings = {.validate = Validate::all_bytes, .repeats = 1, .warm_ups = 0};
  ASSERT_TRUE(benchmark_io(files, settings));
  flip_byte(files, 1, 5'000'001);
  const Result<IoResult> result = benchmark_io(files, settings);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::corrupt);
  EXPECT_EQ(result.error().offset_bytes, 5'000'001U);
}

TEST(IoBenchmark, FilesThatOthersWroteAreFilledAgainBeforeAValidatedRead) {
  const TestFolder folder;
  BenchmarkFiles files = files_in(folder.path());
  const IoSettings settings = {.validate = Validate::all_bytes, .repeats = 1, .warm_ups = 0};
  ASSERT_TRUE(benchmark_io(files, settings));
  flip_byte(files, 0, 17);
  files.written_by_others(1);
  const Result<IoResult> result = benchmark_io(files, settings);
  EXPECT_TRUE(result) << result.error().message();
  EXPECT_EQ(files.written_bytes(), 2 * kBytes + 1);
}

TEST(IoBenchmark, WritesNoMoreThanItSays) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path());
  ASSERT_TRUE(benchmark_io(files, {.direction = IoDirection::write, .repeats = 3, .warm_ups = 1}));
  EXPECT_EQ(files.written_bytes(), 4 * kBytes);
  ASSERT_TRUE(benchmark_io(files, {.direction = IoDirection::read, .repeats = 3}));
  EXPECT_EQ(files.written_bytes(), 4 * kBytes);  // what is there need not be filled
}

TEST(IoBenchmark, RepeatsTakeTheFilesInTurn) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path(), kMiB, 4);
  const Result<IoResult> result =
      benchmark_io(files, {.direction = IoDirection::write, .files_at_once = 2, .repeats = 1, .warm_ups = 1});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->totals.bytes, 2 * kMiB);
  for (uint32_t i = 0; i < 4; ++i) {
    const std::vector<std::byte> bytes = test::read_file(files.path_for_others(i));
    EXPECT_NE(bytes, std::vector<std::byte>(kMiB)) << i;
  }
  EXPECT_FALSE(benchmark_io(files, {.files_at_once = 3}));
}

TEST(IoBenchmark, TakesTurnsWithOthersOnTheSameFiles) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path());
  Result<IoBenchmark> read = IoBenchmark::prepare(files, {.validate = Validate::all_bytes});
  Result<IoBenchmark> write =
      IoBenchmark::prepare(files, {.direction = IoDirection::write, .validate = Validate::all_bytes});
  ASSERT_TRUE(read && write);
  for (int round = 0; round < 3; ++round) {
    const auto count = round == 0 ? IoBenchmark::Count::warm_up : IoBenchmark::Count::yes;
    const Result<IoSample> written = write->run(count);
    ASSERT_TRUE(written) << written.error().message();
    const Result<IoSample> found = read->run(count);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(found->bytes, kBytes);
  }
  EXPECT_EQ(read->result().samples.size(), 2U);
  EXPECT_EQ(write->result().validated_bytes, 3 * kBytes);
}

TEST(IoBenchmark, ADirectReadIsColdAndCountedByTheKernelAsWell) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path());
  const Result<IoResult> result = benchmark_io(files, {});
  ASSERT_TRUE(result) << result.error().message();
  if (result->totals.direct_bytes != result->totals.bytes) GTEST_SKIP() << "no direct I/O here: " << result->why;
  EXPECT_EQ(result->cold, true);
  for (const IoSample& sample : result->samples) {
    if (!sample.device_bytes) GTEST_SKIP() << "/proc/self/io cannot be read";
    EXPECT_EQ(*sample.device_bytes, kBytes);
    EXPECT_LE(sample.transfer_seconds, sample.seconds);
    EXPECT_LE(sample.seconds, sample.whole_seconds);
  }
}

TEST(IoBenchmark, FilesInMemoryAreNeverCalledCold) {
  const test::Stage& stage = test::stage(test::StageKind::tmpfs);
  if (stage.folder.empty()) GTEST_SKIP() << stage.why_not;
  const BenchmarkFiles files = files_in(stage.folder);
  const Result<IoResult> result = benchmark_io(files, {.repeats = 1});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_NE(result->cold, true);
  EXPECT_EQ(result->totals.buffered_bytes, kBytes);
  EXPECT_FALSE(result->why.empty());
}

TEST(IoBenchmark, APageCacheThatIsLeftAloneIsNotCold) {
  const TestFolder folder;
  test::write_file(folder.file("warm"), std::vector<std::byte>(4 * kMiB, std::byte{3}));
  const Result<BenchmarkFiles> files =
      BenchmarkFiles::open_existing(std::vector{folder.file("warm")}, BlockDevice::refuse);
  ASSERT_TRUE(files);
  IoSettings settings = {.direct = Ladder::never, .cache = CacheBefore::leave_as_is, .repeats = 1};
  const Result<IoResult> warm = benchmark_io(*files, settings);
  ASSERT_TRUE(warm);
  EXPECT_EQ(warm->cold, false);
  EXPECT_EQ(warm->samples[0].resident_bytes, 4 * kMiB);
  settings.cache = CacheBefore::drop;
  const Result<IoResult> cold = benchmark_io(*files, settings);
  ASSERT_TRUE(cold);
  EXPECT_EQ(cold->cold, true);
}

TEST(IoBenchmark, TheEngineThatMovesNothingWritesNothingAndIsNotCold) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path());
  const Result<IoResult> result = benchmark_io(files, {.engine = EngineKind::null});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->totals.bytes, 3 * kBytes);
  EXPECT_EQ(result->cold, std::nullopt);
  EXPECT_EQ(files.written_bytes(), 0U);
  const Result<IoResult> refused = benchmark_io(files, {.engine = EngineKind::null, .validate = Validate::all_bytes});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
}

TEST(IoBenchmark, MoreMemoryThanIsAllowedIsSharedByPartsOfTheFile) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path(), 8 * kMiB);
  const IoSettings settings = {.block_bytes = kMiB, .memory_bytes_max = 2 * kMiB, .repeats = 1};
  const Result<IoResult> result = benchmark_io(files, settings);
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->totals.bytes, 8 * kMiB);
  EXPECT_EQ(result->memory_bytes, 2 * kMiB);
  IoSettings validated = settings;
  validated.validate = Validate::all_bytes;
  const Result<IoResult> refused = benchmark_io(files, validated);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
}

TEST(IoBenchmark, SettingsThatMakeNoSenseAreRefused) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path());
  for (const IoSettings& settings :
       {IoSettings{.bytes = kBytes + 1}, IoSettings{.block_bytes = 1000}, IoSettings{.queue_depth = 1U << 20},
        IoSettings{.workers = 1000}, IoSettings{.repeats = 0}, IoSettings{.warm_ups = kBenchmarkRepeatsMax + 1}}) {
    const Result<IoResult> result = benchmark_io(files, settings);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument) << result.error().message();
  }
}

TEST(IoBenchmark, AnInterruptionEndsItSoonWhereverItComes) {
  const TestFolder folder;
  // Asked for the first, the third, ... time: while filling, reading, comparing.
  for (int patience = 0; patience < 16; patience += 2) {
    BenchmarkFiles files = files_in(folder.path(), 256 * kMiB);
    int asked = 0;
    std::chrono::steady_clock::time_point told;
    const Progress progress = {.interrupted = [&] {
      told = std::chrono::steady_clock::now();
      return asked++ >= patience;
    }};
    const Result<IoResult> result = benchmark_io(files, {.validate = Validate::all_bytes, .repeats = 10'000}, progress);
    const auto late = std::chrono::steady_clock::now() - told;
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::interrupted) << result.error().message();
    EXPECT_LT(late, std::chrono::seconds(2));  // on a busy machine; far less on an idle one
    EXPECT_EQ(folder.entries(), 0U);
  }
}

TEST(IoBenchmark, ProgressGrowsToTheTotalThatItNames) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path(), 64 * kMiB);
  ProgressNow last;
  bool shrank = false;
  const Progress progress = {.show = [&](const ProgressNow& now) {
    shrank |= now.done_bytes < last.done_bytes;
    last = now;
  }};
  ASSERT_TRUE(benchmark_io(files, {.repeats = 3}, progress));
  EXPECT_FALSE(shrank);
  EXPECT_EQ(last.total_bytes, 5 * 64 * kMiB);  // filling, one warm-up, three repeats
  EXPECT_LE(last.done_bytes, last.total_bytes);
}

TEST(BenchmarkEngines, StandSideBySideInBothDirections) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path());
  const Result<std::vector<EngineRow>> rows =
      benchmark_engines(files, {.settings = {.validate = Validate::all_bytes, .repeats = 2}});
  ASSERT_TRUE(rows) << rows.error().message();
  ASSERT_EQ(rows->size(), 8U);
  for (const EngineRow& row : *rows) {
    if (!row.result) {
      EXPECT_NE(row.engine, EngineKind::posix) << row.result.error().message();
      continue;
    }
    EXPECT_EQ(row.result->samples.size(), 2U);
    EXPECT_EQ(row.result->handle.engine, row.engine);
    EXPECT_EQ(row.result->settings.direction, row.direction);
  }
}

TEST(BenchmarkJson, HoldsWhatTheResultHolds) {
  const TestFolder folder;
  const BenchmarkFiles files = files_in(folder.path());
  const Result<IoResult> result = benchmark_io(files, {.direction = IoDirection::write, .repeats = 2});
  ASSERT_TRUE(result);
  const auto json = nlohmann::json::parse(to_json(std::vector{*result}));
  EXPECT_EQ(json["schema"], "headrace.bench-io");
  EXPECT_EQ(json["version"], 1);
  const nlohmann::json& one = json["results"][0];
  EXPECT_EQ(one["direction"], "write");
  EXPECT_EQ(one["totals"]["bytes"], 2 * kBytes);
  EXPECT_EQ(one["settings"]["block_bytes"], "auto");
  EXPECT_EQ(one["settings"]["durable"], true);
  EXPECT_EQ(one["resolved"]["block_bytes"], result->handle.block_bytes);
  EXPECT_EQ(one["samples"].size(), 2U);
  EXPECT_TRUE(one["cold"].is_null());
}

}  // namespace
}  // namespace headrace
