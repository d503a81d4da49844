// SPDX-License-Identifier: Apache-2.0
// The legacy container: a file that torch 2.13 wrote, byte for byte, and everything that is refused.
#include "format/torch_legacy.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace headrace::format {
namespace {

using namespace std::string_view_literals;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// torch.save({"w": torch.arange(3, dtype=torch.int16), "b": torch.ones(2)}, f, _use_new_zipfile_serialization=False)
constexpr std::string_view kLead =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"
    "\x80\x02\x4d\xe9\x03\x2e"
    "\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\x0d\x00\x00\x00little_endianq\x02\x88X\x0a\x00\x00"
    "\x00type_sizesq\x03}q\x04(X\x05\x00\x00\x00shortq\x05K\x02X\x03\x00\x00\x00intq\x06K\x04X\x04\x00\x00\x00longq\x07"
    "K\x04uu."sv;
constexpr std::string_view kObject =
    "\x80\x02}q\x00(X\x01\x00\x00\x00wq\x01"
    "ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03"
    "ctorch\nShortStorage\nq\x04X\x0e\x00\x00\x00"
    "94622053779632q\x05X\x03\x00\x00\x00"
    "cpuq\x06K\x03Ntq\x07QK\x00K\x03\x85q\x08K\x01\x85q\x09\x89"
    "ccollections\nOrderedDict\nq\x0a)Rq\x0btq\x0cRq\x0dX\x01\x00\x00\x00"
    "bq\x0eh\x02((h\x03"
    "ctorch\nFloatStorage\nq\x0fX\x0e\x00\x00\x00"
    "94621967613088q\x10h\x06K\x02Ntq\x11QK\x00K\x02\x85q\x12K\x01\x85q\x13\x89h\x0a)Rq\x14tq\x15Rq\x16u."sv;
constexpr std::string_view kKeys =
    "\x80\x02]q\x00(X\x0e\x00\x00\x00"
    "94621967613088q\x01X\x0e\x00\x00\x00"
    "94622053779632q\x02"
    "e."sv;
constexpr std::string_view kStorages =
    "\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x3f\x00\x00\x80\x3f"
    "\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x02\x00"sv;
constexpr uint64_t kFileBytes = 485;

const std::vector<LegacyEntry> kEntries = {{.key = "94622053779632", .element_count = 3, .bytes = 6},
                                           {.key = "94621967613088", .element_count = 2, .bytes = 8}};

std::string keys_of(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i)
    names.push_back(std::to_string(i));
  std::vector<LegacyEntry> entries;
  for (const std::string& name : names)
    entries.push_back({.key = name});
  return plan_torch_legacy(0, entries).value().keys;
}

void expect_error(const auto& result, ErrorCode code, std::string_view wanted) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, code);
  EXPECT_NE(result.error().detail.find(wanted), std::string::npos) << result.error().detail;
}

TEST(TorchLegacy, AFileIsWrittenAsTorchWritesIt) {
  const auto plan = plan_torch_legacy(kObject.size(), kEntries);
  ASSERT_TRUE(plan) << plan.error().message();
  std::string file(plan->file_bytes, '?');
  const auto put = [&](uint64_t at, std::string_view part) { file.replace(at, part.size(), part); };
  put(0, plan->lead);
  put(plan->object_offset_bytes, kObject);
  put(plan->keys_offset_bytes, plan->keys);
  const std::string_view data[] = {kStorages.substr(24), kStorages.substr(8, 8)};
  for (const uint32_t i : plan->order) {
    const auto& place = plan->places[i];
    put(place.count_offset_bytes, {reinterpret_cast<const char*>(place.count.data()), place.count.size()});
    put(place.data_offset_bytes, data[i]);
  }
  EXPECT_EQ(plan->file_bytes, kFileBytes);
  EXPECT_EQ(file, std::string(kLead) + std::string(kObject) + std::string(kKeys) + std::string(kStorages));
  EXPECT_EQ(plan->order, (std::vector<uint32_t>{1, 0}));  // keys in the order of their characters
}

TEST(TorchLegacy, ListsOfKeysArePickledAsPythonDoes) {
  EXPECT_EQ(keys_of(0), "\x80\x02]q\0."sv);
  EXPECT_EQ(keys_of(1),
            "\x80\x02]q\0X\x01\0\0\0"
            "0q\x01"
            "a."sv);
  EXPECT_EQ(keys_of(2),
            "\x80\x02]q\0(X\x01\0\0\0"
            "0q\x01X\x01\0\0\0"
            "1q\x02"
            "e."sv);
  // Lengths and ends as pickle.dumps(sorted(map(str, range(n))), protocol=2) gives them.
  EXPECT_EQ(keys_of(999).size(), 12120u);
  EXPECT_EQ(keys_of(1000).size(), 12133u);
  EXPECT_TRUE(
      keys_of(1000).ends_with("998r\xe7\x03\0\0X\x03\0\0\0"
                              "999r\xe8\x03\0\0e."sv));
  EXPECT_EQ(keys_of(1001).size(), 12149u);
  EXPECT_TRUE(
      keys_of(1001).ends_with("98r\xe8\x03\0\0e(X\x03\0\0\0"
                              "999r\xe9\x03\0\0e."sv));
  EXPECT_EQ(keys_of(2000).size(), 26135u);
  EXPECT_EQ(keys_of(2001).size(), 26151u);
}

TEST(TorchLegacy, StoragesThatCannotBeWrittenAreRefused) {
  const auto refused = [](std::vector<LegacyEntry> entries, std::string_view wanted, uint64_t object_bytes = 10) {
    expect_error(plan_torch_legacy(object_bytes, entries), ErrorCode::invalid_argument, wanted);
  };
  refused({{.key = "a", .element_count = 1, .bytes = 4}, {.key = "a", .element_count = 1, .bytes = 4}},
          "two storages have the key 'a'");
  refused({{.key = "\xff"}}, "not UTF-8");
  refused({{.key = "a", .element_count = 3, .bytes = 4}}, "storage 'a': 4 bytes are not 3 elements");
  refused({{.key = "a", .element_count = 0, .bytes = 4}}, "storage 'a': 4 bytes are not 0 elements");
  refused({{.key = "a", .element_count = 1, .bytes = uint64_t{1} << 63}}, "no file is long enough");
  refused({{.key = "a", .element_count = 1, .bytes = INT64_MAX - 100}}, "no file is long enough");
  refused({}, "no file is long enough", UINT64_MAX);
}

TEST(TorchLegacy, TheMagicIsKnownInEveryProtocol) {
  EXPECT_TRUE(is_torch_legacy(bytes_of(kLead)));
  EXPECT_TRUE(is_torch_legacy(bytes_of(kLead).first(15)));
  EXPECT_TRUE(is_torch_legacy(bytes_of("L119547037146038801333356L\n.")));
  EXPECT_TRUE(is_torch_legacy(bytes_of("\x80\x03\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.")));
  EXPECT_TRUE(
      is_torch_legacy(bytes_of("\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv)));
  EXPECT_FALSE(is_torch_legacy(bytes_of(kLead).first(14)));
  EXPECT_FALSE(is_torch_legacy(bytes_of("")));
  EXPECT_FALSE(is_torch_legacy(bytes_of("\x80")));
  EXPECT_FALSE(is_torch_legacy(bytes_of("PK\x03\x04")));
  EXPECT_FALSE(is_torch_legacy(bytes_of("\x80\x06\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.")));
  EXPECT_FALSE(is_torch_legacy(bytes_of("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x18.")));
}

TEST(TorchLegacy, TheLeadThatTorchWritesNeedsNoPickleReader) {
  const std::string file = std::string(kLead) + std::string(kObject);
  EXPECT_EQ(torch_legacy_lead_bytes(bytes_of(file)).value(), 137u);
}

TEST(TorchLegacy, OtherFactsOfTheSystemAreMeasuredByTheHook) {
  const std::string file = std::string(kLead.substr(0, 21)) + std::string("\x80\x02}q\0.rest"sv);
  const std::string_view system = std::string_view(file).substr(21);
  expect_error(torch_legacy_lead_bytes(bytes_of(file)), ErrorCode::corrupt, "facts of the system");
  std::string_view asked;
  const auto hook = [&](std::span<const std::byte> rest) -> Result<uint64_t> {
    asked = {reinterpret_cast<const char*>(rest.data()), rest.size()};
    return 6;
  };
  EXPECT_EQ(torch_legacy_lead_bytes(bytes_of(file), hook).value(), 27u);
  EXPECT_EQ(asked, system);
  for (const uint64_t wrong : {uint64_t{0}, system.size() + 1, UINT64_MAX}) {
    const auto liar = [&](std::span<const std::byte>) -> Result<uint64_t> { return wrong; };
    const auto lead = torch_legacy_lead_bytes(bytes_of(file), liar);
    expect_error(lead, ErrorCode::corrupt, "do not end");
    EXPECT_EQ(lead.error().offset_bytes, 21u);
  }
  const auto failing = [](std::span<const std::byte>) -> Result<uint64_t> {
    return std::unexpected(Error{.code = ErrorCode::corrupt, .detail = "no pickle"});
  };
  expect_error(torch_legacy_lead_bytes(bytes_of(file), failing), ErrorCode::corrupt, "no pickle");
}

TEST(TorchLegacy, LeadsOfOtherProtocolsAreMeasured) {
  const std::string_view leads[] = {
      "L119547037146038801333356L\n.I1001\n.S"sv, "L119547037146038801333356L\n.M\xe9\x03.S"sv,
      "\x80\x03\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x03M\xe9\x03.S"sv,
      "\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x04\x95\x04\0\0\0\0\0\0\0M\xe9\x03.S"sv};
  for (const std::string_view lead : leads) {
    const auto hook = [&](std::span<const std::byte> rest) -> Result<uint64_t> { return rest.size(); };
    EXPECT_EQ(torch_legacy_lead_bytes(bytes_of(lead), hook).value_or(0), lead.size()) << lead;
  }
}

TEST(TorchLegacy, OtherMagicsAndVersionsAreRefused) {
  expect_error(torch_legacy_lead_bytes(bytes_of("PK\x03\x04")), ErrorCode::corrupt, "magic number");
  expect_error(torch_legacy_lead_bytes({}), ErrorCode::corrupt, "magic number");
  std::string version(kLead);
  version[18] = '\xea';  // 1002
  const auto lead = torch_legacy_lead_bytes(bytes_of(version));
  expect_error(lead, ErrorCode::corrupt, "version is not 1001");
  EXPECT_EQ(lead.error().offset_bytes, 15u);
  for (size_t length = 0; length < kLead.size(); ++length)
    EXPECT_FALSE(torch_legacy_lead_bytes(bytes_of(kLead).first(length))) << length;
}

TEST(TorchLegacy, StoragesAreFoundWithoutReadingTheirCounts) {
  const std::vector<LegacyStorageId> ids = {{.key = "94621967613088", .element_bytes = 4, .element_count = 2},
                                            {.key = "94622053779632", .element_bytes = 2, .element_count = 3}};
  const uint64_t begin = kFileBytes - kStorages.size();
  const auto result = plan_legacy_storages(ids, begin, kFileBytes);
  ASSERT_TRUE(result) << result.error().message();
  ASSERT_EQ(result->storages.size(), 2u);
  EXPECT_EQ(result->storages[0].data_offset_bytes, begin + 8);
  EXPECT_EQ(result->storages[0].data_bytes, 8u);
  EXPECT_EQ(result->storages[1].count_offset_bytes, begin + 16);
  EXPECT_EQ(result->storages[1].data_bytes, 6u);
  EXPECT_EQ(result->end_bytes, kFileBytes);
  for (size_t i = 0; i < 2; ++i) {
    const auto count = bytes_of(kStorages).subspan(result->storages[i].count_offset_bytes - begin).first<8>();
    EXPECT_TRUE(check_legacy_count(result->storages[i], ids[i].key, count));
  }
  const auto status = check_legacy_count(result->storages[1], ids[1].key, bytes_of(kStorages).first<8>());
  expect_error(status, ErrorCode::corrupt,
               "storage '94622053779632': 2 elements stand before its data, the pickle says 3");
  EXPECT_EQ(status.error().offset_bytes, begin + 16);
  constexpr auto kMinusOne = "\xff\xff\xff\xff\xff\xff\xff\xff"sv;
  expect_error(check_legacy_count(result->storages[0], "k", bytes_of(kMinusOne).first<8>()), ErrorCode::corrupt,
               "-1 elem");
}

TEST(TorchLegacy, AnotherObjectMayFollowAndTheEndIsTold) {
  const std::vector<LegacyStorageId> ids = {{.key = "a", .element_bytes = 4, .element_count = 0}};
  EXPECT_EQ(plan_legacy_storages(ids, 100, 1000).value().end_bytes, 108u);
  EXPECT_EQ(plan_legacy_storages({}, 100, 1000).value().end_bytes, 100u);
}

TEST(TorchLegacy, StoragesPastTheEndOfTheFileAreRefusedByName) {
  const auto refused = [](LegacyStorageId id, uint64_t begin, uint64_t file, std::string_view wanted) {
    expect_error(plan_legacy_storages({&id, 1}, begin, file), ErrorCode::corrupt, wanted);
  };
  refused({.key = "a", .element_bytes = 4, .element_count = 2}, 100, 115, "storage 'a': of its 8 bytes the file has 7");
  refused({.key = "a", .element_bytes = 4, .element_count = 2}, 100, 107,
          "storage 'a': the file ends before its count");
  refused({.key = "a", .element_bytes = 4, .element_count = 2}, 100, 99, "ends before its list of keys");
  refused({.key = "a", .element_bytes = 8, .element_count = uint64_t{1} << 61}, 100, 200, "more than a file can have");
  refused({.key = "a", .element_bytes = 1, .element_count = UINT64_MAX}, 100, 200, "more than a file can have");
  refused({.key = "a", .element_bytes = 0, .element_count = UINT64_MAX}, 100, 200, "more than a file can have");
}

}  // namespace
}  // namespace headrace::format
