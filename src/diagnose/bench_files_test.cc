// SPDX-License-Identifier: Apache-2.0
// Files of a benchmark: they leave nothing behind, fill no disk, and touch nothing that they did not make.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <headrace/benchmark.h>

#include "base/units.h"
#include "tests/support/child_process.h"
#include "tests/support/files.h"
#include "tests/support/stage.h"

namespace headrace {
namespace {

using base::kMiB;
using test::TestFolder;

Result<BenchmarkFiles> files_in(const std::string& folder, uint64_t bytes = kMiB, uint32_t files = 1) {
  return BenchmarkFiles::create({.folders = {folder}, .file_bytes = bytes, .files_per_folder = files});
}

Result<BenchmarkFiles> existing(const std::string& path, BlockDevice block_device = BlockDevice::refuse) {
  return BenchmarkFiles::open_existing(std::vector{path}, block_device);
}

TEST(BenchmarkFiles, HaveNoNameAndAreThereAllTheSame) {
  const TestFolder folder;
  const Result<BenchmarkFiles> files = files_in(folder.path(), 3 * kMiB, 2);
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(folder.entries(), 0U);
  EXPECT_EQ(files->count(), 2U);
  EXPECT_EQ(test::file_bytes(files->path_for_others(0)), 3 * kMiB);
  EXPECT_EQ(test::file_bytes(files->path_for_others(1)), 3 * kMiB);
}

TEST(BenchmarkFiles, AreGoneWithTheSet) {
  const TestFolder folder;
  const size_t open_before = test::open_descriptors();
  {
    const Result<BenchmarkFiles> files = files_in(folder.path());
    ASSERT_TRUE(files);
    EXPECT_GT(test::open_descriptors(), open_before);
  }
  EXPECT_EQ(test::open_descriptors(), open_before);
}

TEST(BenchmarkFiles, GiveTheirSpaceBackWhenTheProcessIsKilled) {
  const test::Stage& stage = test::stage(test::StageKind::small_ext4);
  if (stage.folder.empty()) GTEST_SKIP() << stage.why_not;
  const auto free = [&] { return std::filesystem::space(stage.folder).available; };
  const uintmax_t before = free();
  const int status = test::run_in_child([&] {
    const Result<BenchmarkFiles> files = files_in(stage.folder, 4 * kMiB);
    if (!files || free() >= before) return 1;
    return ::raise(SIGKILL);
  });
  EXPECT_EQ(status, 200 + SIGKILL);
  EXPECT_EQ(free(), before);
}

TEST(BenchmarkFiles, AreMadeWhereTheFileSystemHasNoNamelessFiles) {
  const TestFolder folder;
  const int status = test::run_in_child([&] {
    // The third argument of openat with O_TMPFILE's own bit, which is above all others that are used.
    if (!test::deny_system_call({.system_call = SYS_openat,
                                 .errno_value = EOPNOTSUPP,
                                 .argument = 2,
                                 .at_least = O_TMPFILE & ~O_DIRECTORY}))
      return 77;
    const Result<BenchmarkFiles> files = files_in(folder.path());
    if (!files) return 1;
    return folder.entries() == 0 && test::file_bytes(files->path_for_others(0)) == kMiB ? 0 : 2;
  });
  if (status == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(BenchmarkFiles, AreSpreadOverTheFolders) {
  const TestFolder one;
  const TestFolder two;
  const Result<BenchmarkFiles> files =
      BenchmarkFiles::create({.folders = {one.path(), two.path()}, .file_bytes = 4096, .files_per_folder = 2});
  ASSERT_TRUE(files);
  EXPECT_EQ(files->count(), 4U);
  ASSERT_EQ(files->places().size(), 2U);
  EXPECT_EQ(files->places()[0].path, one.path());
  EXPECT_EQ(files->places()[1].path, two.path());
  EXPECT_FALSE(files->places()[0].file_system.empty());
}

TEST(BenchmarkFiles, OfMoreThanIsFreeAreRefusedWithWhatIsFree) {
  const TestFolder folder;
  const uint64_t wanted = std::filesystem::space(folder.path()).available;
  const Result<BenchmarkFiles> files = files_in(folder.path(), wanted);
  ASSERT_FALSE(files);
  EXPECT_EQ(files.error().errno_value, ENOSPC);
  EXPECT_EQ(files.error().path, folder.path());
  EXPECT_NE(files.error().detail.find("are free"), std::string::npos) << files.error().detail;
}

TEST(BenchmarkFiles, LeaveAPartOfASmallDiskFree) {
  const test::Stage& stage = test::stage(test::StageKind::small_ext4);
  if (stage.folder.empty()) GTEST_SKIP() << stage.why_not;
  const uint64_t capacity = std::filesystem::space(stage.folder).capacity;
  const uint64_t available = std::filesystem::space(stage.folder).available;
  EXPECT_FALSE(files_in(stage.folder, available - capacity / 25));
  EXPECT_TRUE(files_in(stage.folder, available - capacity / 10));
}

TEST(BenchmarkFiles, OfTwoFoldersOnOneDiskNeedRoomForBoth) {
  const TestFolder one;
  const TestFolder two;
  const uint64_t available = std::filesystem::space(one.path()).available;
  const Result<BenchmarkFiles> files =
      BenchmarkFiles::create({.folders = {one.path(), two.path()}, .file_bytes = available / 20 * 11});
  ASSERT_FALSE(files);
  EXPECT_EQ(files.error().errno_value, ENOSPC);
}

TEST(BenchmarkFiles, AreRefusedInWhatIsNoFolder) {
  const TestFolder folder;
  test::write_file(folder.file("file"), std::vector<std::byte>(10));
  const Result<BenchmarkFiles> in_file = files_in(folder.file("file"));
  ASSERT_FALSE(in_file);
  EXPECT_EQ(in_file.error().code, ErrorCode::invalid_argument);
  const Result<BenchmarkFiles> nowhere = files_in(folder.file("nothing"));
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().errno_value, ENOENT);
  EXPECT_FALSE(files_in(""));
  EXPECT_FALSE(files_in(folder.path(), 0));
  EXPECT_FALSE(files_in(folder.path(), UINT64_MAX));
  EXPECT_FALSE(files_in(folder.path(), 1, 0));
  EXPECT_FALSE(files_in(folder.path(), 1, kBenchmarkFilesMax + 1));
}

TEST(BenchmarkFiles, ThatExistAreReadAndNeverWritten) {
  const TestFolder folder;
  const std::vector<std::byte> bytes(2 * kMiB, std::byte{42});
  test::write_file(folder.file("mine"), bytes);
  const Result<BenchmarkFiles> files = existing(folder.file("mine"));
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_TRUE(files->existing());
  EXPECT_EQ(files->file_bytes(), bytes.size());
  const Result<IoResult> read = benchmark_io(*files, {.direction = IoDirection::read, .repeats = 1});
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->totals.bytes, bytes.size());
  const Result<IoResult> write = benchmark_io(*files, {.direction = IoDirection::write});
  ASSERT_FALSE(write);
  EXPECT_EQ(write.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(files->written_bytes(), 0U);
  EXPECT_EQ(test::read_file(folder.file("mine")), bytes);
}

TEST(BenchmarkFiles, ThatExistMustBeFilesWithContents) {
  const TestFolder folder;
  test::write_file(folder.file("empty"), {});
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("loop", folder.file("loop").c_str()), 0);
  for (const std::string& path : {folder.path(), folder.file("empty"), folder.file("pipe"), std::string("/dev/zero")}) {
    const Result<BenchmarkFiles> files = existing(path);
    ASSERT_FALSE(files) << path;
    EXPECT_EQ(files.error().code, ErrorCode::invalid_argument) << path;
    EXPECT_EQ(files.error().path, path);
  }
  const Result<BenchmarkFiles> loop = existing(folder.file("loop"));
  ASSERT_FALSE(loop);
  EXPECT_EQ(loop.error().errno_value, ELOOP);
}

TEST(BenchmarkFiles, ABlockDeviceIsReadOnlyWhenTheCallerSaysSo) {
  const test::LoopDevice device("bench", 8 * kMiB, 512);
  if (device.name().empty()) GTEST_SKIP() << device.why_not();
  const Result<BenchmarkFiles> refused = existing(device.name());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  const Result<BenchmarkFiles> files = existing(device.name(), BlockDevice::may_be_read);
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->file_bytes(), 8 * kMiB);
  EXPECT_TRUE(device.name().ends_with(files->places()[0].device)) << files->places()[0].device;
  const Result<IoResult> read = benchmark_io(*files, {.repeats = 1, .warm_ups = 0});
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->totals.bytes, 8 * kMiB);
  EXPECT_FALSE(benchmark_io(*files, {.direction = IoDirection::write}));
}

}  // namespace
}  // namespace headrace
