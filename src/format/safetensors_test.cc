// SPDX-License-Identifier: Apache-2.0
// parse_safetensors: what the reference reader accepts and refuses (safetensors 0.8.0, asked case by case), the few
// places where this reader is stricter, and where in the file a fault is reported.
#include "format/safetensors.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace headrace::format {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Result<SafetensorsHeader> parse(std::string_view json, uint64_t data_bytes) {
  return parse_safetensors(bytes_of(json), 8 + json.size() + data_bytes);
}

// A header with one tensor `a` whose fields are given.
std::string one(std::string_view fields) { return R"({"a":{)" + std::string(fields) + "}}"; }
std::string shaped(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return one(R"("dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) + R"(,"data_offsets":)" +
             std::string(offsets));
}
const std::string kTensor = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
const std::string kPlain = R"({"a":)" + kTensor + "}";

void expect_corrupt(const Result<SafetensorsHeader>& result, std::string_view wanted, std::string_view input) {
  ASSERT_FALSE(result.has_value()) << input;
  EXPECT_EQ(result.error().code, ErrorCode::corrupt) << input;
  EXPECT_NE(result.error().detail.find(wanted), std::string::npos) << input << "\n" << result.error().detail;
}

struct Case {
  std::string json;
  uint64_t data_bytes = 8;
  std::string_view wanted = {};  // a part of the detail
};

TEST(SafetensorsParse, TensorsComeInTheOrderOfTheirBytes) {
  const std::string json =
      R"({"late":{"dtype":"U8","shape":[2,1],"data_offsets":[4,6]},"__metadata__":{"format":"pt","k":""},)"
      R"("early":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  )";
  const auto header = parse(json, 6);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->data_begin_bytes, 8 + json.size());
  EXPECT_EQ(header->file_bytes, 8 + json.size() + 6);
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "early");
  EXPECT_EQ(header->tensors[0].dtype, DType::float32);
  EXPECT_EQ(header->tensors[1].name, "late");
  EXPECT_EQ(header->tensors[1].shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(header->tensors[1].begin_bytes, 4u);
  EXPECT_EQ(header->tensors[1].end_bytes, 6u);
  ASSERT_TRUE(header->metadata);
  EXPECT_EQ(*header->metadata, (SafetensorsMetadata{{"format", "pt"}, {"k", ""}}));
}

TEST(SafetensorsParse, WhatTheReferenceAcceptsIsAccepted) {
  const std::vector<Case> cases = {
      {"{}", 0},
      {kPlain},
      {kPlain + "       "},
      {kPlain + "\n\t\r "},
      {"{ \"a\" :\n{\"shape\" : [ 2 ] ,\t\"data_offsets\":[0 , 8],\"dtype\":\"F32\" } }"},
      {R"({"__metadata__":null,"a":)" + kTensor + "}"},
      {R"({"a":)" + kTensor + R"(,"__metadata__":{"k":"v"}})"},
      {R"({"":)" + kTensor + "}"},
      {R"({"a\/\u0000\ud83d\ude00":)" + kTensor + "}"},
      {"{\"a\x7f\":" + kTensor + "}"},
      {one(R"("x":[1,{"y":2.5e3,"dtype":7}],"dtype":"F32","shape":[2],"z":null,"data_offsets":[0,8],"w":{},"v":true)")},
      {one(R"("x":123456789012345678901234567890,"x":-1,"dtype":"F32","shape":[2],"data_offsets":[0,8])")},
      {one(R"("dtype":"\u004632","shape":[2],"data_offsets":[0,8])")},
      {shaped("F64", "[]", "[0,8]")},
      {shaped("F32", "[0]", "[0,0]"), 0},
      {shaped("F32", "[0,9223372036854775808,4]", "[0,0]"), 0},
      {shaped("F4", "[4]", "[0,2]"), 2},
      {shaped("F6_E2M3", "[4]", "[0,3]"), 3},
      {shaped("F6_E3M2", "[2,4]", "[0,6]"), 6},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
       R"("y":{"dtype":"F32","shape":[3,0],"data_offsets":[8,8]}})"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"z":{"dtype":"U8","shape":[3,0],"data_offsets":[4,4]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})"},
  };
  for (const Case& test : cases) {
    const auto header = parse(test.json, test.data_bytes);
    EXPECT_TRUE(header.has_value()) << test.json << "\n" << header.error().message();
  }
}

TEST(SafetensorsParse, EachElementTypeOfTheFormatIsKnown) {
  for (const char* name :
       {"BOOL",        "F4",          "F6_E2M3", "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "U16", "I16", "F8_E8M0",
        "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16",     "BF16",    "I32", "U32", "F32",     "C64",     "F64", "I64", "U64"}) {
    const auto dtype = dtype_from_safetensors(name);
    ASSERT_TRUE(dtype) << name;
    const uint64_t bytes = dtype_facts(*dtype).bits;  // of eight elements
    const auto header = parse(shaped(name, "[8]", "[0," + std::to_string(bytes) + "]"), bytes);
    ASSERT_TRUE(header) << name << header.error().message();
    EXPECT_EQ(header->tensors[0].dtype, *dtype);
  }
}

TEST(SafetensorsParse, HeadersThatAreNoJsonAreRefused) {
  for (const std::string& json : std::vector<std::string>{"[]",
                                                          "3",
                                                          "\"a\"",
                                                          "null",
                                                          "\xef\xbb\xbf{}",
                                                          " {}",
                                                          "x",
                                                          "{",
                                                          "{}{}",
                                                          "{},",
                                                          "{} x",
                                                          kPlain + "]",
                                                          R"({"a":)" + kTensor + ",}",
                                                          "{/**/}",
                                                          "{}//",
                                                          "{'a':1}",
                                                          R"({"a")",
                                                          R"({"a":)",
                                                          R"({"a":{"dtype":"F3)",
                                                          "{\"a\x01\":" + kTensor + "}",
                                                          R"({"\ud800":)" + kTensor + "}",
                                                          R"({"\ud800\u0041":)" + kTensor + "}",
                                                          R"({"\x41":)" + kTensor + "}",
                                                          shaped("F32", "[02]", "[0,8]"),
                                                          shaped("F32", "[+2]", "[0,8]"),
                                                          shaped("F32", "[2,]", "[0,8]"),
                                                          shaped("F32", "[NaN]", "[0,8]"),
                                                          one(R"("x":1e999)")}) {
    expect_corrupt(parse(json, 8), "", json);
  }
  expect_corrupt(parse("", 0), "does not begin with '{'", "nothing");
  expect_corrupt(parse(" " + kPlain, 8), "does not begin with '{'", "a blank first");
  expect_corrupt(parse("{} x", 0), "no valid JSON", "{} x");
  expect_corrupt(parse(R"({"a":{"dtype":"F3)", 0), "tensor 'a': the header is no valid JSON, or ends too early", "cut");
}

TEST(SafetensorsParse, NulBytesAndBrokenUtf8AreRefusedWhereTheyStand) {
  const std::string nul = kPlain + std::string(1, '\0');
  const auto with_nul = parse(nul, 8);
  expect_corrupt(with_nul, "NUL", nul);
  EXPECT_EQ(with_nul.error().offset_bytes, 8 + kPlain.size());
  for (const char* bad : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\xaf", "\x80"}) {
    const auto header = parse("{\"b" + std::string(bad) + "\":" + kTensor + "}", 8);
    expect_corrupt(header, "not UTF-8", bad);
    EXPECT_EQ(header.error().offset_bytes, 8 + 3u);
  }
}

TEST(SafetensorsParse, DuplicatesAreRefused) {
  const std::vector<Case> cases = {
      {R"({"a":)" + kTensor + R"(,"a":)" + kTensor + "}", 8, "tensor 'a' stands in the header twice"},
      {R"({"a":{"dtype":"F32","shape":[9],"data_offsets":[0,8]},"a":)" + kTensor + "}", 8, "tensor 'a' stands"},
      {R"({"a":)" + kTensor + R"(,"\u0061":)" + kTensor + "}", 8, "tensor 'a' stands in the header twice"},
      {R"({"__metadata__":{},"__metadata__":{},"a":)" + kTensor + "}", 8, "__metadata__: stands in the header twice"},
      {R"({"__metadata__":null,"__metadata__":null})", 0, "__metadata__: stands in the header twice"},
      {R"({"__metadata__":{"k":"1","k":"2"},"a":)" + kTensor + "}", 8, "the key 'k' stands there twice"},
      {one(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': 'dtype' stands there"},
      {one(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': 'shape' stands there"},
      {one(R"("data_offsets":[0,8],"dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8, "'data_offsets' stands there"},
  };
  for (const Case& test : cases)
    expect_corrupt(parse(test.json, test.data_bytes), test.wanted, test.json);
}

TEST(SafetensorsParse, FieldsOfTheWrongKindAreRefusedWithTheTensorsName) {
  const std::vector<Case> cases = {
      {R"({"a":3})", 0, "tensor 'a': a number stands where an object has to be"},
      {R"({"a":null})", 0, "tensor 'a': null stands where an object has to be"},
      {R"({"a":["F32",[2],[0,8]]})", 8, "tensor 'a': an array stands where an object has to be"},
      {one(R"("dtype":{"F32":null},"shape":[2],"data_offsets":[0,8])"), 8, "an object stands where the name of an"},
      {one(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])"), 8, "an array stands where the name of an element"},
      {one(R"("dtype":3,"shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': a number stands where the name of an"},
      {one(R"("shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': 'dtype' is missing"},
      {one(R"("dtype":"F32","data_offsets":[0,8])"), 8, "tensor 'a': 'shape' is missing"},
      {one(R"("dtype":"F32","shape":[2])"), 8, "tensor 'a': 'data_offsets' is missing"},
      {one(""), 8, "tensor 'a': 'dtype' is missing"},
      {shaped("f32", "[2]", "[0,8]"), 8, "tensor 'a': the element type 'f32' is unknown"},
      {shaped("", "[2]", "[0,8]"), 8, "tensor 'a': the element type '' is unknown"},
      {shaped("C128", "[2]", "[0,8]"), 8, "tensor 'a': the element type 'C128' is unknown"},
      {shaped("F32", "[-2]", "[0,8]"), 8, "tensor 'a': a negative number stands where an integer of the shape"},
      {shaped("F32", "[-0]", "[0,8]"), 8, "tensor 'a': a negative number stands where an integer of the shape"},
      {shaped("F32", "[2.0]", "[0,8]"), 8, "tensor 'a': a number that is no integer below 2^64 stands"},
      {shaped("F32", "[2e0]", "[0,8]"), 8, "no integer below 2^64"},
      {shaped("F32", "[18446744073709551616]", "[0,8]"), 8, "no integer below 2^64"},
      {shaped("F32", "[true]", "[0,8]"), 8, "a boolean stands where an integer of the shape"},
      {shaped("F32", "[null]", "[0,8]"), 8, "null stands where an integer of the shape"},
      {shaped("F32", "[\"2\"]", "[0,8]"), 8, "a string stands where an integer of the shape"},
      {shaped("F32", "[[2]]", "[0,8]"), 8, "an array stands where an integer of the shape"},
      {shaped("F32", "[{}]", "[0,8]"), 8, "an object stands where an integer of the shape"},
      {shaped("F32", "2", "[0,8]"), 8, "a number stands where an array for its shape"},
      {shaped("F32", "null", "[0,8]"), 8, "null stands where an array for its shape"},
      {shaped("F32", "{}", "[0,8]"), 8, "an object stands where an array for its shape"},
      {shaped("F32", "[2]", "[0]"), 8, "tensor 'a': not two offsets"},
      {shaped("F32", "[2]", "[]"), 8, "tensor 'a': not two offsets"},
      {shaped("F32", "[2]", "[0,8,9]"), 8, "tensor 'a': more than two offsets"},
      {shaped("F32", "[2]", "[-0,8]"), 8, "a negative number stands where an offset"},
      {shaped("F32", "[2]", "[0.0,8]"), 8, "no integer below 2^64 stands where an offset"},
      {shaped("F32", "[2]", "[0,18446744073709551616]"), 8, "no integer below 2^64"},
      {shaped("F32", "[2]", "\"08\""), 8, "a string stands where an array of two data_offsets"},
      {R"({"__metadata__":[]})", 0, "__metadata__: an array stands where an object has to be"},
      {R"({"__metadata__":3})", 0, "__metadata__: a number stands where an object has to be"},
      {R"({"__metadata__":{"k":1}})", 0, "__metadata__: a number stands where a string has to be"},
      {R"({"__metadata__":{"k":null}})", 0, "__metadata__: null stands where a string has to be"},
      {R"({"__metadata__":{"k":{"a":"b"}}})", 0, "__metadata__: an object stands where a string has to be"},
      {R"({"__metadata__":{"k":["a"]}})", 0, "__metadata__: an array stands where a string has to be"},
  };
  for (const Case& test : cases)
    expect_corrupt(parse(test.json, test.data_bytes), test.wanted, test.json);
}

std::string two(std::string_view a, std::string_view b) {
  return R"({"a":{"dtype":"U8",)" + std::string(a) + R"(},"b":{"dtype":"U8",)" + std::string(b) + "}}";
}

TEST(SafetensorsParse, RangesThatDoNotFitAreRefusedWithTheTensorsName) {
  const std::vector<Case> cases = {
      {shaped("F32", "[2]", "[0,9]"), 9, "tensor 'a': F32 of shape [2] has 8 bytes, its data_offsets [0, 9] have 9"},
      {shaped("F32", "[3]", "[0,8]"), 8, "tensor 'a': F32 of shape [3] has 12 bytes"},
      {shaped("F64", "[]", "[0,0]"), 0, "tensor 'a': F64 of shape [] has 8 bytes"},
      {shaped("F32", "[2]", "[8,0]"), 8, "tensor 'a': its data_offsets [8, 0] end before they begin"},
      {shaped("F32", "[9223372036854775808,4,0]", "[0,0]"), 0, "tensor 'a': F32 of shape [9223372036854775808, 4, 0]"},
      {shaped("F32", "[1152921504606846976]", "[0,0]"), 0, "has more bits than 64-bit numbers can count"},
      {shaped("F4", "[3]", "[0,1]"), 1, "tensor 'a': F4 of shape [3] does not fill whole bytes"},
      {shaped("F4", "[3]", "[0,2]"), 2, "tensor 'a': F4 of shape [3] does not fill whole bytes"},
      {shaped("F6_E3M2", "[3]", "[0,3]"), 3, "tensor 'a': F6_E3M2 of shape [3] does not fill whole bytes"},
      {shaped("U8", "[2305843009213693951]", "[0,2305843009213693951]"), 8, "tensor 'a': its data_offsets"},
      {shaped("U8", "[4]", "[18446744073709551612,0]"), 8, "end before they begin"},
      {shaped("F32", "[1]", "[4,8]"), 8, "tensor 'a': no tensor has the 4 bytes before its first, 4"},
      {two(R"("shape":[2],"data_offsets":[0,2])", R"("shape":[4],"data_offsets":[4,8])"), 8,
       "tensor 'b': no tensor has the 2 bytes before its first, 4"},
      {two(R"("shape":[4],"data_offsets":[0,4])", R"("shape":[5],"data_offsets":[3,8])"), 8,
       "tensor 'b': its data_offsets [3, 8] overlap those of tensor 'a', which end at 4"},
      {two(R"("shape":[8],"data_offsets":[0,8])", R"("shape":[8],"data_offsets":[0,8])"), 8,
       "tensor 'b': its data_off"},
      {two(R"("shape":[8],"data_offsets":[0,8])", R"("shape":[3,0],"data_offsets":[4,4])"), 8,
       "tensor 'b': its data_off"},
      {shaped("F32", "[0]", "[8,8]"), 8, "tensor 'a': no tensor has the 8 bytes"},
  };
  for (const Case& test : cases)
    expect_corrupt(parse(test.json, test.data_bytes), test.wanted, test.json);
}

// B48: the same verdict whoever reads the file.
TEST(SafetensorsParse, AFileThatIsLongerOrShorterThanItsRangesIsRefused) {
  const auto longer = parse(kPlain, 8 + 16);
  expect_corrupt(longer, "16 bytes at the end of the file belong to no tensor", kPlain);
  EXPECT_EQ(longer.error().offset_bytes, 8 + kPlain.size() + 8);
  const auto shorter = parse(kPlain, 7);
  expect_corrupt(shorter, "tensor 'a': its data_offsets [0, 8] pass the end of the data, which are 7 bytes", kPlain);
  expect_corrupt(parse("{}", 1), "1 bytes at the end of the file belong to no tensor", "{}");
}

TEST(SafetensorsParse, FaultsAreReportedWhereTheyStandInTheFile) {
  const auto offset_of = [](const std::string& json, uint64_t data_bytes) {
    const auto header = parse(json, data_bytes);
    return header ? 0 : header.error().offset_bytes;
  };
  const std::string before = R"({ "first": {"dtype":"U8","shape":[0],"data_offsets":[0,0]} , )";
  const std::string type = before + R"("a" : {"dtype": "F31"}})";
  EXPECT_EQ(offset_of(type, 0), 8 + type.find("\"F31"));
  const std::string shape = before + R"("a":{"shape": [1, 2, -3]}})";
  EXPECT_EQ(offset_of(shape, 0), 8 + shape.find("-3"));
  const std::string twice = before + R"("a":{"shape":[1],  "shape":[2]}})";
  EXPECT_EQ(offset_of(twice, 0), 8 + twice.rfind("\"shape"));
  const std::string name = before + R"("fi\u0072st":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  EXPECT_EQ(offset_of(name, 0), 8 + before.size());
  const std::string range = before + R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,3]}})";
  EXPECT_EQ(offset_of(range, 3), 8 + before.size());
  const std::string comma = before + "}";
  EXPECT_EQ(offset_of(comma, 0), 8 + comma.size() - 1);
  const std::string metadata = R"({"__metadata__":{"k":"v" , "l":7}})";
  EXPECT_EQ(offset_of(metadata, 0), 8 + metadata.find('7'));
}

TEST(SafetensorsParse, DeepNestingIsRefusedAtTheReferencesLimit) {
  const auto nested = [](size_t depth) {
    return one(R"("x":)" + std::string(depth, '[') + std::string(depth, ']') +
               R"(,"dtype":"F32","shape":[2],"data_offsets":[0,8])");
  };
  EXPECT_TRUE(parse(nested(125), 8));
  expect_corrupt(parse(nested(126), 8), "more than 127 containers within each other", "126");
  expect_corrupt(parse(nested(10'000'000), 8), "more than 127 containers within each other", "10000000");
}

TEST(SafetensorsParse, LongNamesLeaveRoomInMessages) {
  const auto header = parse("{\"" + std::string(1'000'000, 'n') + "\":3}", 0);
  expect_corrupt(header, "tensor 'nnn", "a million n");
  EXPECT_LT(header.error().detail.size(), 200u);
}

Result<uint64_t> header_bytes(uint64_t length, uint64_t file_bytes, size_t given = 8) {
  std::array<std::byte, 8> first = {};
  for (size_t i = 0; i < 8; ++i)
    first[i] = static_cast<std::byte>(length >> 8 * i & 0xFF);
  return safetensors_header_bytes(std::span(first).first(given), file_bytes);
}

TEST(SafetensorsHeaderBytes, LengthsInsideTheFileAndTheLimitAreTaken) {
  EXPECT_EQ(header_bytes(2, 10).value(), 2u);
  EXPECT_EQ(header_bytes(0, 8).value(), 0u);  // refused by the second step, as no JSON
  EXPECT_EQ(header_bytes(100'000'000, 100'000'008).value(), 100'000'000u);
}

TEST(SafetensorsHeaderBytes, LengthsThatNoFileHasAreRefusedBeforeMemoryIsTaken) {
  for (const auto& result : {header_bytes(100'000'001, 1'000'000'000), header_bytes(UINT64_MAX, 1'000'000'000),
                             header_bytes(UINT64_MAX - 7, UINT64_MAX), header_bytes(uint64_t{1} << 63, UINT64_MAX)}) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::corrupt);
    EXPECT_NE(result.error().detail.find("100000000 are the limit"), std::string::npos);
  }
  for (const auto& result : {header_bytes(3, 10), header_bytes(100'000'000, 100'000'007)}) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().detail.find("in a file of"), std::string::npos);
  }
  for (const auto& result : {header_bytes(0, 0, 0), header_bytes(0, 7, 7), header_bytes(0, 100, 7)}) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().detail.find("has no header"), std::string::npos);
  }
}

TEST(SafetensorsParse, LengthsThatContradictEachOtherAreRefused) {
  expect_corrupt(parse_safetensors(bytes_of("{}"), 9), "a header of 2 bytes in a file of 9", "{}");
  expect_corrupt(parse_safetensors(bytes_of("{}"), 0), "a header of 2 bytes in a file of 0", "{}");
}

TEST(SafetensorsParse, WhatIsPlannedParsesToTheSame) {
  const std::vector<uint64_t> shapes[] = {{}, {0}, {3, 0, 2}, {5}, {2, 3, 4}};
  const std::optional<SafetensorsMetadata> metadata = SafetensorsMetadata{{"b", "\"\\\n\x01"}, {"a", "\xc3\xa9"}};
  std::vector<std::string> names;
  std::vector<SafetensorsEntry> entries;
  names.reserve(1000);
  for (uint32_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype_facts(dtype).safetensors.empty()) continue;
    for (const auto& shape : shapes) {
      const auto bytes = safetensors_bytes(dtype, shape);
      if (!bytes) continue;  // no whole bytes
      names.push_back("t\t" + std::to_string(names.size()));
      entries.push_back({.name = names.back(), .dtype = dtype, .shape = shape, .bytes = *bytes});
    }
  }
  const auto plan = plan_safetensors(entries, metadata);
  ASSERT_TRUE(plan) << plan.error().message();
  const auto header = parse_safetensors(bytes_of(plan->head).subspan(8), plan->file_bytes);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->metadata, metadata);
  EXPECT_EQ(header->data_begin_bytes, plan->head.size());
  ASSERT_EQ(header->tensors.size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const SafetensorsEntry& entry = entries[plan->order[i]];
    const auto found = std::ranges::find(header->tensors, entry.name, &SafetensorsTensor::name);
    ASSERT_NE(found, header->tensors.end());
    EXPECT_EQ(found->dtype, entry.dtype);
    EXPECT_TRUE(std::ranges::equal(found->shape, entry.shape));
    EXPECT_EQ(header->data_begin_bytes + found->begin_bytes, plan->offsets_bytes[plan->order[i]]);
    EXPECT_EQ(found->end_bytes - found->begin_bytes, entry.bytes);
  }
}

}  // namespace
}  // namespace headrace::format
