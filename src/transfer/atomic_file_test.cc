// SPDX-License-Identifier: Apache-2.0
// A file appears whole or not at all, whatever step fails; on a simulated and on the real file system.
#include <headrace/atomic_file.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/files.h"
#include "tests/support/sim_world.h"

namespace headrace {
namespace {

using namespace headrace::test;

constexpr uint64_t kOldBytes = 30'000;
constexpr uint64_t kNewBytes = 50'001;

std::vector<std::byte> old_bytes() { return std::vector<std::byte>(kOldBytes, std::byte{1}); }

// One replacement of `path`, as Handle::replace() does it. True when it succeeded.
Status replace(Handle& handle, const std::string& path) {
  const std::vector<std::byte> source = pattern(kNewBytes);
  Result<Transfer> transfer =
      handle.replace(path, {.source = {source.data(), source.size(), {}}, .durability = Durability::data});
  if (!transfer) return std::unexpected(transfer.error());
  Result<uint64_t> result = transfer->result();
  if (!result) return std::unexpected(result.error());
  EXPECT_EQ(*result, kNewBytes);
  return {};
}

TEST(AtomicFile, WhateverStepFailsTheFileIsTheOldOrTheNewOne) {
  for (const int errno_value : {EIO, ENOSPC, EACCES, EMFILE}) {
    size_t runs = 0;
    for (bool failed_somewhere = true; failed_somewhere; ++runs) {
      ASSERT_LT(runs, 50u);
      World world;
      const FileSystemInPlace in_place(world.system);
      world.system.put("/f", old_bytes());
      world.system.faults.fail(runs, errno_value);
      const Status status = replace(world.handle, "/f");
      failed_somewhere = world.system.faults.failed().has_value();
      const std::string step = world.system.faults.failed().value_or("none");
      const std::vector<std::byte> now = world.system.bytes_of("/f");
      const bool is_new = now == pattern(kNewBytes);
      EXPECT_TRUE(is_new || now == old_bytes()) << step;
      if (!status) {
        EXPECT_EQ(status.error().errno_value, errno_value) << step << ": " << status.error().message();
        EXPECT_EQ(status.error().path, "/f") << step << ": " << status.error().message();
      }
      // Only the sync of the folder comes after the rename, and direct I/O has a substitute.
      EXPECT_EQ(status.has_value(), step == "none" || step == "reopen_direct") << step;
      EXPECT_EQ(is_new, status.has_value() || step == "sync folder") << step;
      EXPECT_EQ(world.system.files(), 1u) << "a temporary file is left after a failed " << step;
      (void)world.handle.close();
    }
    EXPECT_GE(runs, 7u);
  }
}

TEST(AtomicFile, WhateverBlockFailsTheOldFileStays) {
  size_t blocks = 0;
  for (size_t failing = 0;; ++failing) {
    World world({}, {.workers = 1, .block_bytes = 8192});
    const FileSystemInPlace in_place(world.system);
    world.system.put("/f", old_bytes());
    const auto count = std::make_shared<std::atomic<size_t>>(0);
    world.disk.set_script([count, failing](const SimIo&) -> std::optional<int64_t> {
      return (*count)++ == failing ? std::optional<int64_t>(-EIO) : std::nullopt;
    });
    const Status status = replace(world.handle, "/f");
    EXPECT_EQ(world.system.files(), 1u);
    blocks = *count;
    if (failing >= blocks) {
      EXPECT_TRUE(status.has_value());
      EXPECT_EQ(world.system.bytes_of("/f"), pattern(kNewBytes));
      break;
    }
    EXPECT_EQ(status.error().errno_value, EIO);
    EXPECT_EQ(world.system.bytes_of("/f"), old_bytes());
  }
  EXPECT_GT(blocks, 5u);
}

TEST(AtomicFile, ACancelledOrAbortedReplacementLeavesTheOldFile) {
  for (const bool cancel : {false, true}) {
    World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 1});
    const FileSystemInPlace in_place(world.system);
    world.system.put("/f", old_bytes());
    const std::vector<std::byte> source = pattern(kNewBytes);
    world.disk.hold();
    const Transfer first =
        *world.handle.write(open_sim(world.system, "/other", FileMode::update), {.source = {source.data(), 100, {}}});
    ASSERT_TRUE(world.disk.wait_for_taken(1));
    Transfer second = *world.handle.replace("/f", {.source = {source.data(), source.size(), {}}});
    if (cancel) {
      EXPECT_TRUE(second.cancel());
    } else {
      second.abort();
    }
    world.disk.release();
    EXPECT_EQ(second.result().error().code, cancel ? ErrorCode::cancelled : ErrorCode::aborted);
    EXPECT_TRUE(first.result().has_value());
    EXPECT_EQ(world.system.bytes_of("/f"), old_bytes());
    EXPECT_EQ(world.system.files(), 2u);
  }
}

TEST(AtomicFile, AnEmptyReplacementEmptiesTheFile) {
  World world;
  const FileSystemInPlace in_place(world.system);
  world.system.put("/f", old_bytes());
  EXPECT_EQ(world.handle.replace("/f", {})->result().value(), 0u);
  EXPECT_EQ(world.system.bytes_of("/f").size(), 0u);
  EXPECT_EQ(world.system.files(), 1u);
}

TEST(AtomicFile, AReplacementAtAnOffsetIsRefused) {
  World world;
  const std::vector<std::byte> source(10);
  EXPECT_EQ(world.handle.replace("/f", {.offset_bytes = 1, .source = {source.data(), 10, {}}}).error().code,
            ErrorCode::invalid_argument);
}

TEST(AtomicFile, TheLengthMayBeLearntWhileItIsWritten) {
  for (const uint64_t first : {uint64_t{0}, 3 * kNewBytes}) {
    World world;
    const FileSystemInPlace in_place(world.system);
    AtomicFile file = *AtomicFile::create("/f", {.size_bytes = first});
    const std::vector<std::byte> source = pattern(kNewBytes);
    ASSERT_TRUE(file.resize(kNewBytes + 1).has_value());
    ASSERT_TRUE(file.resize(kNewBytes).has_value());
    ASSERT_TRUE(world.handle.write(file.file(), {.source = {source.data(), source.size(), {}}})->result().has_value());
    ASSERT_TRUE(file.commit().has_value());
    EXPECT_EQ(world.system.bytes_of("/f"), source);
    EXPECT_EQ(file.resize(1).error().code, ErrorCode::invalid_argument);
  }
}

TEST(AtomicFile, ALengthThatIsNotToBeHadLeavesTheOneBefore) {
  World world;
  const FileSystemInPlace in_place(world.system);
  AtomicFile file = *AtomicFile::create("/f", {.size_bytes = 10});
  world.system.faults.fail(0, ENOSPC);
  const Status status = file.resize(kNewBytes);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().errno_value, ENOSPC);
  EXPECT_EQ(status.error().path, "/f");
  ASSERT_TRUE(file.commit().has_value());
  EXPECT_EQ(world.system.bytes_of("/f"), std::vector<std::byte>(10));
}

TEST(AtomicFile, ManyWritersCommitOnce) {
  World world({}, {.workers = 2});
  const FileSystemInPlace in_place(world.system);
  world.system.put("/f", old_bytes());
  AtomicFile file = *AtomicFile::create("/f", {.size_bytes = kNewBytes});
  const std::vector<std::byte> source = pattern(kNewBytes);
  std::vector<WriteItem> items;
  for (uint64_t offset = 0; offset < kNewBytes; offset += 777) {
    items.push_back({.file = file.file(),
                     .request = {.offset_bytes = offset,
                                 .source = {source.data() + offset, std::min<uint64_t>(777, kNewBytes - offset), {}}}});
  }
  const std::vector<Transfer> transfers = *world.handle.write_many(items);
  for (const Transfer& transfer : transfers)
    EXPECT_TRUE(transfer.result().has_value());
  EXPECT_EQ(world.system.bytes_of("/f"), old_bytes());
  EXPECT_TRUE(file.commit().has_value());
  EXPECT_EQ(world.system.bytes_of("/f"), source);
  EXPECT_FALSE(file.commit().has_value()) << "twice";
  file.discard();
  EXPECT_EQ(world.system.bytes_of("/f"), source);
}

// --- on the real file system ---

TEST(AtomicFile, OnARealFileSystemNothingIsLeftWhateverStepFails) {
  const TestFolder folder;
  const std::string path = folder.file("f");
  const size_t descriptors = open_descriptors();
  for (size_t index = 0;; ++index) {
    FaultyFileSystem system;
    const FileSystemInPlace in_place(system);
    write_file(path, old_bytes());
    Handle handle = *Handle::create({.workers = 1});
    system.faults.fail(index, EIO);
    const Status status = replace(handle, path);
    const std::string step = system.faults.failed().value_or("none");
    EXPECT_TRUE(handle.close().has_value() || !status);
    const std::vector<std::byte> now = read_file(path);
    EXPECT_TRUE(now == old_bytes() || now == pattern(kNewBytes)) << step;
    EXPECT_EQ(now == pattern(kNewBytes), status.has_value() || step == "sync folder") << step;
    EXPECT_EQ(folder.entries(), 1u) << step;
    if (step == "none") break;
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(AtomicFile, KeepsPermissionsAndFollowsASymbolicLink) {
  const TestFolder folder;
  const std::string path = folder.file("f");
  write_file(path, old_bytes());
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  ASSERT_EQ(::symlink("f", folder.file("link").c_str()), 0);
  ASSERT_EQ(::link(path.c_str(), folder.file("hard").c_str()), 0);
  Handle handle = *Handle::create({.workers = 1});
  EXPECT_TRUE(replace(handle, folder.file("link")).has_value());
  struct stat status = {};
  ASSERT_EQ(::lstat(folder.file("link").c_str(), &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
  EXPECT_EQ(read_file(path), pattern(kNewBytes));
  EXPECT_EQ(read_file(folder.file("hard")), old_bytes());
}

TEST(AtomicFile, ADanglingLinkGetsItsFile) {
  const TestFolder folder;
  ASSERT_EQ(::symlink("not-yet", folder.file("link").c_str()), 0);
  Handle handle = *Handle::create({.workers = 1});
  EXPECT_TRUE(replace(handle, folder.file("link")).has_value());
  EXPECT_EQ(read_file(folder.file("not-yet")), pattern(kNewBytes));
}

TEST(AtomicFile, PathsThatCannotBeReplacedAreRefusedByErrno) {
  const TestFolder folder;
  const auto refused = [](const std::string& path) {
    const Result<AtomicFile> made = AtomicFile::create(path, {.size_bytes = 10});
    return made ? 0 : made.error().errno_value;
  };
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("loop", folder.file("loop").c_str()), 0);
  write_file(folder.file("plain"), old_bytes());
  EXPECT_EQ(refused(""), ENOENT);
  EXPECT_EQ(refused(folder.path()), EISDIR);
  EXPECT_EQ(refused(folder.path() + "/"), EISDIR);
  EXPECT_EQ(refused(folder.file("new/")), EISDIR);
  EXPECT_EQ(refused(folder.file("fifo")), EINVAL);
  EXPECT_EQ(refused(folder.file("loop")), ELOOP);
  EXPECT_EQ(refused(folder.file("plain/below")), ENOTDIR);
  EXPECT_EQ(refused(folder.file("missing/f")), ENOENT);
  EXPECT_EQ(refused("/dev/null"), EINVAL);
  EXPECT_EQ(refused(folder.file(std::string(256, 'n'))), ENAMETOOLONG);
  EXPECT_EQ(refused(folder.file(std::string("zero\0byte", 9))), EINVAL);
}

TEST(AtomicFile, ANameOf255BytesHasRoomForItsTemporary) {
  const TestFolder folder;
  const std::string path = folder.file(std::string(NAME_MAX, 'n'));
  Handle handle = *Handle::create({.workers = 1});
  EXPECT_TRUE(replace(handle, path).has_value());
  EXPECT_EQ(read_file(path), pattern(kNewBytes));
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, ARelativePathSurvivesAChdir) {
  const TestFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directory(folder.file("elsewhere"));
  std::filesystem::current_path(folder.path());
  {
    AtomicFile file = *AtomicFile::create("f", {.size_bytes = 10});
    AtomicFile dropped = *AtomicFile::create("g", {.size_bytes = 10});
    std::filesystem::current_path(folder.file("elsewhere"));
    EXPECT_TRUE(file.commit().has_value());
  }
  std::filesystem::current_path(before);
  EXPECT_EQ(read_file(folder.file("f")).size(), 10u);
  EXPECT_EQ(folder.entries(), 2u) << "a temporary file is left";
}

TEST(AtomicFile, AForkedChildNeitherDiscardsNorCommits) {
  const TestFolder folder;
  AtomicFile file = *AtomicFile::create(folder.file("f"), {.size_bytes = 10});
  const int status = run_in_child([&] {
    const Status committed = file.commit();
    const AtomicFile mine = std::move(file);
    return committed ? 1 : 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(file.commit().has_value());
  EXPECT_EQ(read_file(folder.file("f")).size(), 10u);
}

TEST(AtomicFile, AWriteThatGrewTheTemporaryIsCutToTheExactSize) {
  const TestFolder folder;
  Handle handle = *Handle::create({.workers = 1});
  AtomicFile file = *AtomicFile::create(folder.file("f"), {.size_bytes = 100});
  const std::vector<std::byte> source = pattern(5000);
  EXPECT_TRUE(handle.write(file.file(), {.source = {source.data(), source.size(), {}}})->result().has_value());
  EXPECT_TRUE(file.commit().has_value());
  EXPECT_EQ(read_file(folder.file("f")), pattern(100));
}

}  // namespace
}  // namespace headrace
