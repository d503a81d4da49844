// SPDX-License-Identifier: Apache-2.0
// Text from the kernel is bounded, absent without fuss, and never shown with control characters.
#include "os/text_file.h"

#include <sys/stat.h>

#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace headrace::os {
namespace {

class TextFile : public testing::Test {
 protected:
  std::string put(const std::string& text) {
    const std::string path = folder_.file("text");
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  test::TestFolder folder_;
};

TEST_F(TextFile, IsNotThereWithoutFuss) {
  EXPECT_FALSE(read_text(folder_.file("missing")));
  EXPECT_FALSE(read_line(folder_.file("missing")));
  EXPECT_FALSE(read_number(folder_.file("missing")));
  EXPECT_FALSE(read_text(folder_.path())) << "a folder is no text";
}

TEST_F(TextFile, OfAFifoIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(folder_.file("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(read_text(folder_.file("fifo")));
}

TEST_F(TextFile, IsCutAtItsBound) {
  const std::string path = put(std::string(100'000, 'x'));
  EXPECT_EQ(read_text(path, 10'000)->size(), 10'000U);
  EXPECT_EQ(read_line(path)->size(), kTextBytesMax);
}

TEST_F(TextFile, IsShownWithoutControlCharacters) {
  EXPECT_EQ(read_line(put("  \x1b[31mDisk\x07 9000\t \nsecond\n")), "?[31mDisk? 9000");
  EXPECT_FALSE(read_line(put(" \n")));
}

TEST_F(TextFile, GivesANumberOnlyWhenItHoldsNothingElse) {
  EXPECT_EQ(read_number(put("18446744073709551615\n")), UINT64_MAX);
  EXPECT_EQ(read_number(put(" 0 ")), 0U);
  for (const char* text : {"", "\n", "-1\n", "12 kB", "0x10", "18446744073709551616", "1 2"})
    EXPECT_FALSE(read_number(put(text))) << text;
}

}  // namespace
}  // namespace headrace::os
