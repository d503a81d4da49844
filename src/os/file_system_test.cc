// SPDX-License-Identifier: Apache-2.0
// The real file system, beside what the conformance and fault suites ask of it through a handle.
#include "os/file_system.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/files.h"

namespace headrace::os {
namespace {

using namespace headrace::test;

uint64_t size_of(const OpenedFile& file) {
  struct stat status = {};
  EXPECT_EQ(::fstat(file.descriptor.get(), &status), 0);
  return static_cast<uint64_t>(status.st_size);
}

TEST(FileSystem, APathThatCannotNameAFileIsRefusedInWords) {
  for (const FileMode mode : {FileMode::read, FileMode::update, FileMode::create}) {
    const Error empty = file_system().open("", mode).error();
    EXPECT_EQ(empty.errno_value, ENOENT);
    EXPECT_EQ(empty.detail, "the path is empty");
    const Error zero = file_system().open(std::string("a\0b", 3), mode).error();
    EXPECT_EQ(zero.errno_value, EINVAL);
    EXPECT_EQ(zero.detail, "the path holds a zero byte");
  }
}

TEST(FileSystem, GrowGivesLengthAndNeverShrinks) {
  const TestFolder folder;
  const OpenedFile file = *file_system().open(folder.file("f"), FileMode::create);
  file_system().grow(file.descriptor.get(), 1 << 20, 4096);
  EXPECT_EQ(size_of(file), 1U << 20);
  struct stat status = {};
  ASSERT_EQ(::fstat(file.descriptor.get(), &status), 0);
  EXPECT_LE(status.st_blocks * 512, 64 << 10) << "the length, not the space";
  file_system().grow(file.descriptor.get(), 8192, 4096);
  EXPECT_EQ(size_of(file), 1U << 20);
  file_system().grow(file.descriptor.get(), 4095, 4096);  // less than one unit: nothing to do
  EXPECT_EQ(size_of(file), 1U << 20);
}

TEST(FileSystem, GrowLeavesTheBytesThatAreThere) {
  const TestFolder folder;
  const std::vector<std::byte> bytes(10'000, std::byte{7});
  write_file(folder.file("f"), bytes);
  const OpenedFile file = *file_system().open(folder.file("f"), FileMode::update);
  file_system().grow(file.descriptor.get(), 8192, 4096);
  EXPECT_EQ(read_file(folder.file("f")), bytes);
}

TEST(FileSystem, GrowBeyondTheSizeLimitNeitherKillsNorChanges) {
  const TestFolder folder;
  const int status = run_in_child([&] {
    const rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const Result<OpenedFile> file = file_system().open(folder.file("f"), FileMode::create);
    if (!file) return 2;
    file_system().grow(file->descriptor.get(), 2 << 20, 4096);  // SIGXFSZ would end the child
    return size_of(*file) == 0 ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
}

TEST(FileSystem, OnlyWhoMadeAFileIsToldThatItIsNew) {
  const TestFolder folder;
  for (const FileMode mode : {FileMode::update, FileMode::truncate, FileMode::create}) {
    const std::string path = folder.file("f");
    EXPECT_TRUE(file_system().open(path, mode)->created);
    EXPECT_FALSE(file_system().open(path, FileMode::update)->created);
    EXPECT_EQ(file_system().open(path, FileMode::create).error().errno_value, EEXIST);
    ASSERT_TRUE(file_system().unlink(path).has_value());
  }
}

TEST(FileSystem, ANameIsAskedForByTheFileBehindIt) {
  const TestFolder folder;
  const OpenedFile file = *file_system().open(folder.file("f"), FileMode::create);
  EXPECT_TRUE(file_system().names(folder.file("f"), file.descriptor.get(), Links::follow));
  ASSERT_TRUE(file_system().rename(folder.file("f"), folder.file("g")).has_value());
  EXPECT_FALSE(file_system().names(folder.file("f"), file.descriptor.get(), Links::follow));
  EXPECT_TRUE(file_system().names(folder.file("g"), file.descriptor.get(), Links::follow));
  ASSERT_EQ(::symlink("g", folder.file("f").c_str()), 0);
  EXPECT_TRUE(file_system().names(folder.file("f"), file.descriptor.get(), Links::follow));
  EXPECT_FALSE(file_system().names(folder.file("f"), file.descriptor.get(), Links::itself));
  ASSERT_TRUE(file_system().unlink(folder.file("f")).has_value());
  write_file(folder.file("f"), {});
  EXPECT_FALSE(file_system().names(folder.file("f"), file.descriptor.get(), Links::follow));
}

}  // namespace
}  // namespace headrace::os
