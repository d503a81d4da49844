// SPDX-License-Identifier: Apache-2.0
// plan_safetensors: the heads that safetensors 0.8.0 writes, written out; and everything that is refused.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "format/safetensors.h"

namespace headrace::format {
namespace {

// A head as the real package made it: its JSON, and the length that its first eight bytes give.
std::string fixture(uint64_t json_bytes, std::string json) {
  std::string head;
  for (unsigned i = 0; i < 8; ++i)
    head += static_cast<char>(json_bytes >> 8 * i & 0xFF);
  json.resize(json_bytes, ' ');
  return head + json;
}

const std::string kAllTypes =
    fixture(1312, R"({"uint64":{"dtype":"U64","shape":[4],"data_offsets":[0,32]},)"
                  R"("int64":{"dtype":"I64","shape":[4],"data_offsets":[32,64]},)"
                  R"("float64":{"dtype":"F64","shape":[4],"data_offsets":[64,96]},)"
                  R"("complex64":{"dtype":"C64","shape":[4],"data_offsets":[96,128]},)"
                  R"("float32":{"dtype":"F32","shape":[4],"data_offsets":[128,144]},)"
                  R"("uint32":{"dtype":"U32","shape":[4],"data_offsets":[144,160]},)"
                  R"("int32":{"dtype":"I32","shape":[4],"data_offsets":[160,176]},)"
                  R"("bfloat16":{"dtype":"BF16","shape":[4],"data_offsets":[176,184]},)"
                  R"("float16":{"dtype":"F16","shape":[4],"data_offsets":[184,192]},)"
                  R"("uint16":{"dtype":"U16","shape":[4],"data_offsets":[192,200]},)"
                  R"("int16":{"dtype":"I16","shape":[4],"data_offsets":[200,208]},)"
                  R"("float8_e5m2fnuz":{"dtype":"F8_E5M2FNUZ","shape":[4],"data_offsets":[208,212]},)"
                  R"("float8_e4m3fnuz":{"dtype":"F8_E4M3FNUZ","shape":[4],"data_offsets":[212,216]},)"
                  R"("float8_e8m0fnu":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[216,220]},)"
                  R"("float8_e4m3fn":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[220,224]},)"
                  R"("float8_e5m2":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[224,228]},)"
                  R"("int8":{"dtype":"I8","shape":[4],"data_offsets":[228,232]},)"
                  R"("uint8":{"dtype":"U8","shape":[4],"data_offsets":[232,236]},)"
                  R"("float4_e2m1fn_x2":{"dtype":"F4","shape":[8],"data_offsets":[236,240]},)"
                  R"("bool":{"dtype":"BOOL","shape":[4],"data_offsets":[240,244]}})");

// all_escapes() below, as JSON.
const std::string kEscaped =
    R"("\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f\u0010\u0011\u0012\u0013\u0014)"
    R"(\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e\u001f !\"#/\\)"
    "\x7f\xc2\x80\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80\"";
const std::string kEscapes = fixture(656, R"({"__metadata__":{)" + kEscaped + ":" + kEscaped + "}," + kEscaped +
                                              R"(:{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})");

const std::string kNames = fixture(592, R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                        R"("B":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                                        R"("Z":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[3,4]},)"
                                        R"("a.10":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},)"
                                        R"("a.2":{"dtype":"U8","shape":[1],"data_offsets":[5,6]},)"
                                        R"("ab":{"dtype":"U8","shape":[1],"data_offsets":[6,7]},)"
                                        R"("b":{"dtype":"U8","shape":[1],"data_offsets":[7,8]},)"
                                        R"("é":{"dtype":"U8","shape":[1],"data_offsets":[8,9]},)"
                                        R"(")"
                                        "\xef\xbf\xbf"
                                        R"(":{"dtype":"U8","shape":[1],"data_offsets":[9,10]},)"
                                        R"("😀":{"dtype":"U8","shape":[1],"data_offsets":[10,11]}})");

const std::string kShapes = fixture(280, R"({"__metadata__":{"format":"pt"},)"
                                         R"("scalar":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                                         R"("hollow":{"dtype":"F32","shape":[3,0,2],"data_offsets":[8,8]},)"
                                         R"("none":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},)"
                                         R"("rank5":{"dtype":"I16","shape":[1,2,1,3,1],"data_offsets":[8,20]}})");

const std::string kNothing = fixture(8, R"({})");

const std::string kEmptyMetadata = fixture(72, R"({"__metadata__":{},)"
                                               R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})");

struct Tensor {
  std::string name;
  DType dtype = DType::uint8;
  std::vector<uint64_t> shape;
  std::optional<uint64_t> bytes = {};  // nullopt: what dtype and shape say
};

Result<SafetensorsPlan> plan(const std::vector<Tensor>& tensors,
                             const std::optional<SafetensorsMetadata>& metadata = std::nullopt) {
  std::vector<SafetensorsEntry> entries;
  for (const Tensor& tensor : tensors) {
    const uint64_t bytes = tensor.bytes ? *tensor.bytes : safetensors_bytes(tensor.dtype, tensor.shape).value_or(0);
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .bytes = bytes});
  }
  return plan_safetensors(entries, metadata);
}

void expect_refused(const Result<SafetensorsPlan>& result, std::string_view wanted) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(result.error().detail.find(wanted), std::string::npos) << result.error().detail;
}

std::string all_escapes() {
  std::string text;
  for (char c = 0; c < 0x24; ++c)
    text += c;
  return text + "/\\\x7f\xc2\x80\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80";
}

TEST(SafetensorsPlan, EveryElementTypeStandsWhereTheReferencePutsIt) {
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const DTypeFacts& facts = dtype_facts(dtype);
    if (facts.safetensors.empty() || facts.torch_bytes == 0) continue;  // the package cannot make those of 6 bits
    tensors.push_back({std::string(facts.name), dtype, {dtype == DType::float4_e2m1fn_x2 ? 8U : 4U}});
  }
  const auto result = plan(tensors);
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, kAllTypes);
  EXPECT_EQ(result->file_bytes, kAllTypes.size() + 244);
}

TEST(SafetensorsPlan, TypesOfSixBitsStandBetweenBytesAndThoseOfFour) {
  const auto result = plan({{"a", DType::float4_e2m1fn_x2, {2}},
                            {"b", DType::float6_e2m3fn, {4}},
                            {"c", DType::float6_e3m2fn, {4}},
                            {"d", DType::uint8, {1}}});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->order, (std::vector<uint32_t>{3, 2, 1, 0}));
  EXPECT_EQ(result->file_bytes - result->head.size(), 1 + 3 + 3 + 1u);
}

TEST(SafetensorsPlan, EscapesInNamesAndMetadataAreThoseOfTheReference) {
  const auto result = plan({{all_escapes(), DType::uint8, {1}}}, SafetensorsMetadata{{all_escapes(), all_escapes()}});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, kEscapes);
}

TEST(SafetensorsPlan, NamesAreSortedByTheirBytes) {
  std::vector<Tensor> tensors;
  for (const char* name : {"b", "a", "B", "\xc3\xa9", "Z", "\xf0\x9f\x98\x80", "\xef\xbf\xbf", "a.10", "a.2", "", "ab"})
    tensors.push_back({name, DType::uint8, {1}});
  const auto result = plan(tensors);
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, kNames);
  EXPECT_EQ(result->offsets_bytes[0], kNames.size() + 7);  // "b"
}

TEST(SafetensorsPlan, ScalarsAndEmptyTensorsKeepTheirShape) {
  const auto result = plan({{"scalar", DType::float64, {}},
                            {"none", DType::float32, {0}},
                            {"hollow", DType::float32, {3, 0, 2}},
                            {"rank5", DType::int16, {1, 2, 1, 3, 1}}},
                           SafetensorsMetadata{{"format", "pt"}});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, kShapes);
  EXPECT_EQ(result->order, (std::vector<uint32_t>{0, 2, 1, 3}));
  const uint64_t data = kShapes.size();
  EXPECT_EQ(result->offsets_bytes, (std::vector<uint64_t>{data, data + 8, data + 8, data + 8}));
  EXPECT_EQ(result->file_bytes, data + 20);
}

TEST(SafetensorsPlan, NoTensorsMakeAFileOfAHeadOnly) {
  const auto result = plan({});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, kNothing);
  EXPECT_EQ(result->file_bytes, 16u);
}

TEST(SafetensorsPlan, EmptyMetadataAreNotTheSameAsNone) {
  const auto result = plan({{"a", DType::uint8, {1}}}, SafetensorsMetadata{});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, kEmptyMetadata);
}

// The reference writes here what it cannot read: {},"__metadata__":{}}
TEST(SafetensorsPlan, EmptyMetadataWithoutTensorsAreValidJson) {
  const auto result = plan({}, SafetensorsMetadata{});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, fixture(24, R"({"__metadata__":{}})"));
}

TEST(SafetensorsPlan, MetadataStandAsGiven) {
  const auto result = plan({}, SafetensorsMetadata{{"z", "1"}, {"a", "2"}});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->head, fixture(40, R"({"__metadata__":{"z":"1","a":"2"}})"));
}

TEST(SafetensorsPlan, ElementTypesThatTheFormatLacksAreRefusedByName) {
  for (uint32_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!dtype_facts(dtype).safetensors.empty()) continue;
    const auto result = plan({{"layer.0", dtype, {1}}});
    expect_refused(result, "tensor 'layer.0'");
    expect_refused(result, dtype_facts(dtype).name);
  }
  expect_refused(plan({{"w", DType::complex128, {1}}}), "complex128");
}

TEST(SafetensorsPlan, LengthsThatDoNotFitTheShapeAreRefused) {
  expect_refused(plan({{"w", DType::float32, {2, 3}, 23}}), "tensor 'w': F32 of shape [2, 3] has 24 bytes, not 23");
  expect_refused(plan({{"w", DType::float32, {}, 0}}), "has 4 bytes, not 0");
  expect_refused(plan({{"w", DType::float4_e2m1fn_x2, {3}, 2}}), "does not fill whole bytes");
  expect_refused(plan({{"w", DType::float6_e2m3fn, {3}, 3}}), "does not fill whole bytes");
}

TEST(SafetensorsPlan, ShapesAndFilesPast64BitsAreRefused) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  expect_refused(plan({{"w", DType::uint8, {kHalf, 2}, 0}}), "64-bit");
  expect_refused(plan({{"w", DType::float32, {uint64_t{1} << 60}, 0}}), "64-bit");
  expect_refused(plan({{"w", DType::uint8, {kHalf, 4, 0}, 0}}), "64-bit");
  EXPECT_TRUE(plan({{"w", DType::uint8, {0, kHalf, 4}}}));
  std::vector<Tensor> tensors;
  for (const char* name : {"a", "b", "c", "d", "e"})
    tensors.push_back({name, DType::uint8, {(uint64_t{1} << 61) - 1}});
  expect_refused(plan(tensors), "tensor 'e': no file is long enough");
}

TEST(SafetensorsPlan, DuplicateNamesAreRefused) {
  expect_refused(plan({{"a", DType::uint8, {1}}, {"b", DType::uint8, {1}}, {"a", DType::int8, {2}}}),
                 "two tensors have the name 'a'");
  expect_refused(plan({}, SafetensorsMetadata{{"k", "1"}, {"k", "1"}}), "two metadata have the key 'k'");
}

TEST(SafetensorsPlan, NamesThatNoReaderTakesAreRefused) {
  expect_refused(plan({{"__metadata__", DType::uint8, {1}}}), "'__metadata__'");
  for (const char* bad : {"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\xaf", "\x80"}) {
    expect_refused(plan({{bad, DType::uint8, {1}}}), "UTF-8");
    expect_refused(plan({}, SafetensorsMetadata{{bad, ""}}), "UTF-8");
    expect_refused(plan({}, SafetensorsMetadata{{"k", bad}}), "metadata under 'k' are not UTF-8");
  }
}

// B47: the reference writes what it then refuses to open.
TEST(SafetensorsPlan, AHeaderOfExactlyTheLimitIsWrittenAndOneMoreByteIsRefused) {
  // {"NAME":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}
  constexpr size_t kAround = sizeof(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})") - 1;
  std::string name(kSafetensorsHeaderMaxBytes - kAround, 'n');
  const auto longest = plan({{name, DType::uint8, {1}}});
  ASSERT_TRUE(longest) << longest.error().message();
  EXPECT_EQ(longest->head.size(), 8 + kSafetensorsHeaderMaxBytes);
  name += 'n';
  expect_refused(plan({{name, DType::uint8, {1}}}), "more than 100000000 bytes");
  name.resize(17'000'000);
  std::ranges::fill(name, '\x01');  // six bytes each in JSON
  expect_refused(plan({{name, DType::uint8, {1}}}), "more than 100000000 bytes");
  expect_refused(plan({}, SafetensorsMetadata{{"k", name}}), "more than 100000000 bytes");
}

TEST(SafetensorsPlan, LongNamesAreCutInMessagesBetweenCharacters) {
  std::string name;
  for (int i = 0; i < 1000; ++i)
    name += "\xe2\x82\xac";
  const auto result = plan({{"a" + name, DType::complex128, {1}}});
  expect_refused(result, "...");
  EXPECT_LT(result.error().detail.size(), 200u);
  expect_refused(plan({{"\n'", DType::complex128, {1}}}), "'\\x0a\\''");
}

}  // namespace
}  // namespace headrace::format
