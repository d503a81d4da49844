// SPDX-License-Identifier: Apache-2.0
// Which files a name stands for, and what is refused because nobody could tell.
// One thread.
// Owns the folders it makes.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <headrace/checkpoint_set.h>

#include "format/shard_index.h"
#include "tests/support/files.h"

namespace headrace {
namespace {

class CheckpointFilesTest : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text = "x") {
    const auto bytes = std::as_bytes(std::span(text));
    test::write_file(folder_.file(name), {bytes.begin(), bytes.end()});
  }
  // File names without the folder, or the message.
  std::string found(const std::string& name = {}) {
    const Result<CheckpointFiles> files = find_checkpoint_files(name.empty() ? folder_.path() : folder_.file(name));
    if (!files) return files.error().message();
    std::string text;
    for (const std::string& path : files->paths) {
      if (!text.empty()) text += ' ';
      text += path.substr(folder_.path().size() + 1);
    }
    return text;
  }
  bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

  test::TestFolder folder_;
};

TEST_F(CheckpointFilesTest, OneFileIsItselfAndAFolderOfOneIsThatOne) {
  put("model.pt");
  put("notes.txt");
  EXPECT_EQ(found("model.pt"), "model.pt");
  EXPECT_EQ(found(), "model.pt");
  EXPECT_EQ(found("notes.txt"), "notes.txt");
}

TEST_F(CheckpointFilesTest, SafetensorsAreTakenWhereBothFormsLieSideBySide) {
  put("model.safetensors");
  put("pytorch_model.bin");
  EXPECT_EQ(found(), "model.safetensors");
}

TEST_F(CheckpointFilesTest, AllPartsOfOneSetBelongTogether) {
  put("model-00001-of-00002.safetensors");
  put("model-00002-of-00002.safetensors");
  EXPECT_EQ(found(), "model-00001-of-00002.safetensors model-00002-of-00002.safetensors");
  EXPECT_EQ(found("model"), "model-00001-of-00002.safetensors model-00002-of-00002.safetensors");
  put("model-00003-of-00003.safetensors");
  EXPECT_TRUE(says(found(), "several checkpoints")) << found();
}

TEST_F(CheckpointFilesTest, AMissingPartIsNamed) {
  put("model-00000-of-00003.bin");
  put("model-00002-of-00003.bin");
  EXPECT_TRUE(says(found(), "number 1 is missing")) << found();
  put("other.bin");
  EXPECT_TRUE(says(found(), "several checkpoints")) << found();
}

TEST_F(CheckpointFilesTest, AnIndexNamesItsFilesAndNothingElseMayLieThere) {
  put("a.safetensors");
  put("b.safetensors");
  put("model.safetensors.index.json",
      R"({"metadata": {"total_size": 12}, "weight_map": {"x": "b.safetensors", "w": "a.safetensors"}})");
  EXPECT_EQ(found(), "a.safetensors b.safetensors");
  const ShardIndex index = *find_checkpoint_files(folder_.path())->index;
  EXPECT_EQ(index.total_bytes, 12U);
  ASSERT_EQ(index.entries.size(), 2U);
  EXPECT_EQ(index.entries[0].tensor, "w");
  EXPECT_EQ(index.entries[0].file, 0U);
  EXPECT_EQ(index.entries[1].file, 1U);
  put("c.safetensors");
  EXPECT_TRUE(says(found(), "left over from another checkpoint")) << found();
  EXPECT_EQ(found("model.safetensors.index.json"), "a.safetensors b.safetensors");
}

TEST_F(CheckpointFilesTest, BrokenIndicesAreCorruptAndNameTheirFault) {
  const auto fault = [&](const std::string& text) {
    put("m.index.json", text);
    const Result<CheckpointFiles> files = find_checkpoint_files(folder_.file("m.index.json"));
    EXPECT_FALSE(files.has_value());
    EXPECT_EQ(files.error().code, ErrorCode::corrupt);
    return files.error().detail;
  };
  EXPECT_TRUE(says(fault("{"), "no JSON"));
  EXPECT_TRUE(says(fault("[]"), "no weight_map"));
  EXPECT_TRUE(says(fault(R"({"weight_map": {"w": 3}})"), "no file name"));
  EXPECT_TRUE(says(fault(R"({"weight_map": {"w": "../secret"}})"), "not a file beside it"));
  EXPECT_TRUE(says(fault(R"({"weight_map": {"w": "gone.bin"}})"), "not there"));
  EXPECT_TRUE(says(fault(std::string(100'000, '[')), "no JSON"));
}

TEST_F(CheckpointFilesTest, WhatIsNotThereIsToldByErrno) {
  EXPECT_EQ(find_checkpoint_files(folder_.file("gone")).error().errno_value, ENOENT);
  EXPECT_EQ(find_checkpoint_files(folder_.path()).error().errno_value, ENOENT);
  EXPECT_EQ(find_checkpoint_files("").error().errno_value, ENOENT);
  put("file");
  EXPECT_EQ(find_checkpoint_files(folder_.file("file/x")).error().errno_value, ENOTDIR);
}

TEST(ShardIndexText, WhatIsWrittenReadsBack) {
  const format::ShardIndexText index = {.files_by_tensor = {{"a", "f1"}, {"b\"\n", "f2"}}, .total_bytes = 77};
  const std::string text = format::write_shard_index(index);
  const Result<format::ShardIndexText> again = format::parse_shard_index(std::as_bytes(std::span(text)));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->files_by_tensor, index.files_by_tensor);
  EXPECT_EQ(again->total_bytes, 77U);
}

}  // namespace
}  // namespace headrace
