// SPDX-License-Identifier: Apache-2.0
// .metadata of strangers: what shares objects to be larger than it is, and what says one thing twice.
// One thread.
// Owns nothing.
#include "format/dcp_metadata.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace headrace::format {
namespace {

const std::string kModule = "torch.distributed.checkpoint.metadata";

std::string number(uint32_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i)
    text += static_cast<char>(value >> (8 * i) & 0xFFU);
  return text;
}
std::string text(std::string_view value) {
  return "X" + number(static_cast<uint32_t>(value.size()), 4) + std::string(value);
}
std::string instance(std::string_view name, std::string_view module = kModule) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n)\x81";
}
std::string put(uint32_t index) { return "r" + number(index, 4); }
std::string get(uint32_t index) { return "j" + number(index, 4); }
std::string small(uint8_t value) { return "K" + number(value, 1); }
std::string tuple(std::string_view items) { return "(" + std::string(items) + "t"; }
std::string state(std::string_view entries) { return "}(" + std::string(entries) + "ub"; }
std::string repeat(std::string_view what, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i)
    all += what;
  return all;
}

std::string chunk(std::string_view offsets, std::string_view sizes, std::string_view more = {}) {
  return instance("ChunkStorageMetadata") +
         state(std::string(more) + text("offsets") + std::string(offsets) + text("sizes") + std::string(sizes));
}
std::string properties(std::string_view dtype) {
  return instance("TensorProperties") + "(ctorch\n" + std::string(dtype) + "\nNNNNtb";
}
std::string tensor(std::string_view size, std::string_view chunks, std::string_view properties_pickle) {
  return instance("TensorStorageMetadata") + state(text("properties") + std::string(properties_pickle) + text("size") +
                                                   std::string(size) + text("chunks") + std::string(chunks));
}
std::string tensor(std::string_view size, std::string_view chunks) {
  return tensor(size, chunks, properties("float32"));
}
// `offset`: a pickle, or nothing.
std::string place(std::string_view name, std::string_view offset, uint8_t begin,
                  std::string_view key_class = "MetadataIndex") {
  return instance(key_class) +
         state(text("fqn") + text(name) + (offset.empty() ? "" : text("offset") + std::string(offset))) +
         instance("_StorageInfo", "torch.distributed.checkpoint.filesystem") +
         state(text("relative_path") + text("f") + text("offset") + small(begin) + text("length") + small(9));
}
std::string metadata(std::string_view described, std::string_view places = {}) {
  return "\x80\x02" + instance("Metadata") +
         state(text("state_dict_metadata") + "}(" + std::string(described) + "u" + text("storage_data") + "}(" +
               std::string(places) + "u") +
         ".";
}

Result<DcpMetadata> parse(const std::string& pickle, const std::function<bool()>& interrupted = {}) {
  return parse_dcp_metadata(std::as_bytes(std::span(pickle)), interrupted);
}

TEST(DcpMetadata, ChunksInATupleAreRead) {
  const auto found =
      parse(metadata(text("w") + tensor(tuple(small(1)), tuple(chunk(tuple(small(0)), tuple(small(1)))))));
  ASSERT_TRUE(found) << found.error().detail;
  EXPECT_EQ(found->tensors.at(0).pieces.size(), 1U);
}

TEST(DcpMetadata, OneChunkListForManyTensorsIsRefused) {
  const std::string chunks = "](" + chunk(tuple(small(0)), tuple(small(1))) + put(3) + repeat(get(3), 2000) + "e";
  std::string described = text("t") + tensor(tuple(small(1)), chunks) + put(7);
  for (int i = 0; i < 2000; ++i)
    described += text("t" + std::to_string(i)) + get(7);
  const auto found = parse(metadata(described));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::corrupt);
  EXPECT_NE(found.error().detail.find("share"), std::string::npos) << found.error().detail;
}

TEST(DcpMetadata, OneChunkWithManyFieldsAtManyPlacesIsRefused) {
  const std::string fat = chunk(tuple(small(0)), tuple(small(1)), repeat(text("junk") + "N", 20000));
  const auto found =
      parse(metadata(text("t") + tensor(tuple(small(1)), "](" + fat + put(3) + repeat(get(3), 20000) + "e")));
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().detail.find("share"), std::string::npos) << found.error().detail;
}

TEST(DcpMetadata, ReadingStopsWhenItIsInterrupted) {
  const auto found = parse(metadata(repeat(text("o") + instance("BytesStorageMetadata"), 2000)), [] { return true; });
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::interrupted);
}

TEST(DcpMetadata, PlacesAreLookedUpAsTorchDoes) {
  const std::string scalar = tensor(")", "](" + chunk(")", ")") + "e");
  const std::string object = instance("BytesStorageMetadata");
  const auto place_of = [&](const std::string& described, std::string_view offset) {
    const auto found = parse(metadata(text("x") + described, place("x", offset, 1)));
    EXPECT_TRUE(found) << found.error().detail;
    return found->tensors.empty() ? found->objects.at(0).place : found->tensors.at(0).pieces.at(0).place;
  };
  EXPECT_TRUE(place_of(scalar, ")"));
  EXPECT_FALSE(place_of(scalar, "N"));
  EXPECT_FALSE(place_of(scalar, ""));
  EXPECT_TRUE(place_of(object, ""));
  EXPECT_TRUE(place_of(object, "N"));
  EXPECT_FALSE(place_of(object, ")"));
}

TEST(DcpMetadata, TheLastOfTwoKeysAndOfTwoStatesCounts) {
  const std::string twice = instance("BytesStorageMetadata");
  const auto keys = parse(
      metadata(text("x") + tensor(tuple(small(1)), "]") + text("x") + twice, place("x", "", 1) + place("x", "", 5)));
  ASSERT_TRUE(keys) << keys.error().detail;
  EXPECT_TRUE(keys->tensors.empty());
  ASSERT_EQ(keys->objects.size(), 1U);
  EXPECT_EQ(keys->places.at(*keys->objects[0].place).offset_bytes, 5U);
  const auto states =
      parse(metadata(text("x") + tensor(tuple(small(1)), "](" + chunk(tuple(small(0)), tuple(small(1))) + "e") +
                     state(text("size") + tuple(small(9))) + text("y") +
                     tensor(tuple(small(1)), "]", properties("float32") + "(ctorch\nfloat64\nNNNNtb")));
  ASSERT_TRUE(states) << states.error().detail;
  EXPECT_EQ(states->tensors.at(0).shape, std::vector<uint64_t>{9});
  EXPECT_EQ(states->tensors.at(1).dtype_name, "float64");
}

TEST(DcpMetadata, WhatPythonWouldTakeOtherwiseIsRefused) {
  const auto refusal = [](const std::string& described, std::string_view places = {}) {
    const auto found = parse(metadata(described, places));
    EXPECT_FALSE(found);
    return found ? std::string() : found.error().detail;
  };
  const std::string good = text("x") + tensor(tuple(small(1)), "](" + chunk(tuple(small(0)), tuple(small(1))) + "e");
  EXPECT_TRUE(parse(metadata(good)));
  // Attributes beside a dict.
  EXPECT_NE(refusal(good + "(N}(" + text("size") + tuple(small(9)) + "utb").find("no dict"), std::string::npos);
  // Python has copied the dict by then.
  EXPECT_NE(refusal(text("x") + tensor(tuple(small(1)), "]") + "}" + put(5) + "b" + text("y") + get(5) + "(" +
                    text("size") + tuple(small(9)) + "u")
                .find("changed after"),
            std::string::npos);
  // A text of Python 2, which is equal to the other.
  EXPECT_NE(refusal(good + state("U\x04size" + tuple(small(9)))).find("no text"), std::string::npos);
  const std::string call = "c" + kModule + "\nMetadataIndex\n(" + text("x") + tuple(small(0)) + "tR";
  EXPECT_NE(refusal(good, call + "N").find("arguments"), std::string::npos);
}

TEST(DcpMetadata, AKeyOfAnotherClassIsNone) {
  const auto found = parse(
      metadata(text("x") + instance("BytesStorageMetadata"), place("x", "", 1) + place("x", "", 5, "StorageMeta")));
  ASSERT_TRUE(found) << found.error().detail;
  EXPECT_EQ(found->places.at(*found->objects.at(0).place).offset_bytes, 1U);
}

TEST(DcpMetadata, ATensorWithoutAnElementTypeIsRefused) {
  const auto found = parse(metadata(text("x") + tensor(tuple(small(1)), "]", "N")));
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().detail.find("element type"), std::string::npos);
}

TEST(DcpMetadata, PiecesThatBeginAtOneElementAreTold) {
  const DcpPiece piece = {.offsets = {0}, .shape = {2}, .place = {}};
  const DcpPiece empty = {.offsets = {4}, .shape = {0}, .place = {}};
  const auto check = [](std::vector<DcpPiece> pieces) {
    return check_dcp_pieces(
        {.name = "x", .dtype_name = "float32", .dtype = DType::float32, .shape = {4}, .pieces = std::move(pieces)});
  };
  EXPECT_EQ(check({piece, {.offsets = {2}, .shape = {2}, .place = {}}, empty, empty}), "");
  EXPECT_NE(check({piece, piece}), "");
}

}  // namespace
}  // namespace headrace::format
