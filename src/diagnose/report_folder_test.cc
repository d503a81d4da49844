// SPDX-License-Identifier: Apache-2.0
// Mounts are found by number in a table that may hold anything; folders that are none are refused with what to do.
#include "diagnose/report_folder.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace headrace::diagnose {
namespace {

constexpr std::string_view kTable =
    "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=continue\n"
    "37 22 0:33 / /mnt/with\\040blank\\134slash rw,nosuid - tmpfs none\\040here rw,size=1024k\n"
    "41 22 0:40 / /merged ro,relatime master:3 propagate_from:2 - overlay overlay "
    "rw,lowerdir=/a:/b,upperdir=/up\\040per,workdir=/w\n"
    "55\n"
    "56 22 0:41 / /torn rw";

TEST(ReportMount, IsFoundByItsNumber) {
  const std::optional<Mount> root = find_mount(kTable, 22);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->facts.type, "ext4");
  EXPECT_EQ(root->facts.source, "/dev/vda1");
  EXPECT_EQ(root->facts.mounted_at, "/");
  EXPECT_EQ(root->facts.mount_options, "rw,relatime");
  EXPECT_EQ(root->facts.options, "rw,errors=continue");
  EXPECT_FALSE(root->facts.in_memory);
  EXPECT_FALSE(find_mount(kTable, 2));
  EXPECT_FALSE(find_mount("", 22));
}

TEST(ReportMount, WithBlanksInItsNameIsReadable) {
  const std::optional<Mount> mount = find_mount(kTable, 37);
  ASSERT_TRUE(mount);
  EXPECT_EQ(mount->facts.mounted_at, "/mnt/with blank\\slash");
  EXPECT_EQ(mount->facts.source, "none here");
  EXPECT_TRUE(mount->facts.in_memory);
}

TEST(ReportMount, OfAnOverlayNamesTheFolderThatIsWritten) {
  const std::optional<Mount> mount = find_mount(kTable, 41);
  ASSERT_TRUE(mount);
  EXPECT_EQ(mount->facts.type, "overlay");
  EXPECT_EQ(mount->facts.mount_options, "ro,relatime");
  EXPECT_EQ(mount->upper_folder, "/up per");
}

TEST(ReportMount, LineThatEndsEarlyIsEmptyAndNotRead) {
  for (const uint64_t torn : {55U, 56U}) {
    const std::optional<Mount> mount = find_mount(kTable, torn);
    ASSERT_TRUE(mount) << torn;
    EXPECT_EQ(mount->facts.type, "") << torn;
  }
}

class ReportFolder : public testing::Test {
 protected:
  Status look(const std::string& path) {
    report_ = {.path = path};
    return describe_folder({}, report_);
  }
  test::TestFolder folder_;
  FolderReport report_;
};

TEST_F(ReportFolder, TellsWhereItReallyIsAndWhatItLiesOn) {
  std::filesystem::create_directory_symlink(folder_.path(), folder_.file("link"));
  ASSERT_TRUE(look(folder_.file("link")));
  EXPECT_EQ(report_.path, folder_.file("link"));
  EXPECT_EQ(report_.real_path, std::filesystem::canonical(folder_.path()));
  EXPECT_NE(report_.file_system.type, "");
  EXPECT_GT(report_.file_system.size_bytes.value_or(0), 0U);
  EXPECT_LE(report_.file_system.free_bytes.value_or(UINT64_MAX), report_.file_system.size_bytes.value_or(0));
}

TEST_F(ReportFolder, ThatIsNoneIsRefusedByName) {
  test::write_file(folder_.file("file"), {});
  std::filesystem::create_symlink(folder_.file("loop"), folder_.file("loop"));
  struct Case {
    std::string path;
    int errno_value;
  };
  for (const Case& wrong :
       {Case{folder_.file("missing"), ENOENT}, Case{folder_.file("file"), ENOTDIR},
        Case{folder_.file("file/below"), ENOTDIR}, Case{folder_.file("loop"), ELOOP}, Case{std::string(), ENOENT},
        Case{std::string("a\0b", 3), EINVAL}, Case{std::string(5000, 'x'), ENAMETOOLONG}}) {
    const Status looked = look(wrong.path);
    ASSERT_FALSE(looked) << wrong.path;
    EXPECT_EQ(looked.error().errno_value, wrong.errno_value) << wrong.path;
    EXPECT_EQ(looked.error().operation, "open folder");
    EXPECT_NE(looked.error().detail, "") << wrong.path;
  }
}

}  // namespace
}  // namespace headrace::diagnose
