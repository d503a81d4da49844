// SPDX-License-Identifier: Apache-2.0
// The zip container: what we lay out is what torch.save writes, the reader finds it again, and refuses what does not add up.
// One thread.
// Owns nothing.
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/crc32.h"
#include "base/little_endian.h"
#include "format/torch_zip_layout.h"
#include "format/torch_zip_reader.h"

namespace headrace::format {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
uint32_t sum_of(const std::string& text) { return base::crc32(bytes_of(text)); }

// A file written by torch 2.13: torch.save({"a": ..., "b": ..., "e": ...}, "small.pt").
std::string file_of_torch() {
  std::ifstream file(HEADRACE_SOURCE_DIR "/fuzz/corpus/torch_zip_fuzz/small.pt", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Archive {
  ZipDirectory directory;
  std::vector<ZipEntry> entries;
  TorchZipContents contents;
};
Result<Archive> open_archive(const std::string& file) {
  Archive archive;
  const std::string tail = file.substr(file.size() - std::min<size_t>(file.size(), kZipTailBytesMax));
  Result<ZipDirectory> directory = find_zip_directory(bytes_of(tail), file.size());
  if (!directory) return std::unexpected(directory.error());
  archive.directory = *directory;
  Result<std::vector<ZipEntry>> entries =
      parse_zip_directory(bytes_of(file).subspan(directory->begin, directory->bytes), *directory);
  if (!entries) return std::unexpected(entries.error());
  archive.entries = *std::move(entries);
  Result<TorchZipContents> contents = torch_zip_contents_of(archive.entries);
  if (!contents) return std::unexpected(contents.error());
  archive.contents = *std::move(contents);
  return archive;
}

std::string data_of(const std::string& file, const ZipEntry& entry) {
  const Result<uint64_t> begin = zip_data_begin(entry, bytes_of(file).subspan(entry.header_begin));
  return begin ? file.substr(*begin, entry.bytes) : begin.error().message();
}

// The whole file, as a writer of the layout puts it together.
std::string write(const TorchZipLayout& layout, const std::vector<std::string>& contents) {
  std::vector<uint32_t> sums;
  std::string file;
  for (size_t i = 0; i < layout.size(); ++i) {
    file += layout.before(i, i > 0 ? sums.back() : 0);
    EXPECT_EQ(file.size(), layout.data_begin(i));
    file += contents[i];
    sums.push_back(sum_of(contents[i]));
  }
  file += layout.behind_last(sums);
  EXPECT_EQ(file.size(), layout.file_bytes());
  return file;
}

std::string small_archive(uint32_t alignment = 64) {
  const std::vector<uint64_t> storages = {40, 0, 3};
  const std::vector<ZipRecord> records = torch_zip_records(7, storages, alignment);
  const TorchZipLayout layout = *TorchZipLayout::create("model", records, alignment);
  std::vector<std::string> contents;
  for (const ZipRecord& record : records) {
    contents.push_back(torch_zip_contents(record, alignment));
    if (contents.back().empty()) contents.back() = std::string(record.bytes, 'x');
  }
  return write(layout, contents);
}

void put(std::string& file, size_t at, const std::string& bytes) { file.replace(at, bytes.size(), bytes); }
template <class T>
std::string little(T value) {
  std::string text;
  base::append_little<T>(text, value);
  return text;
}

TEST(TorchZip, OurLayoutOfTorchsRecordsIsTorchsFile) {
  const std::string file = file_of_torch();
  const Archive archive = *open_archive(file);
  std::vector<ZipRecord> records;
  std::vector<std::string> contents;
  for (const ZipEntry& entry : archive.entries) {
    records.push_back({.name = entry.name.substr(6), .bytes = entry.bytes});
    contents.push_back(data_of(file, entry));
    EXPECT_EQ(sum_of(contents.back()), entry.sum);
  }
  EXPECT_EQ(write(*TorchZipLayout::create("small", records, 64), contents), file);
  const std::vector<uint64_t> storages = {40, 3, 0};
  const std::vector<ZipRecord> ours = torch_zip_records(contents[0].size(), storages, 64);
  ASSERT_EQ(ours.size(), records.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].name, records[i].name);
    EXPECT_EQ(ours[i].bytes, records[i].bytes) << ours[i].name;
    const std::string fixed = torch_zip_contents(ours[i], 64);
    if (!fixed.empty()) {
      EXPECT_EQ(fixed, contents[i]) << ours[i].name;
    }
  }
  EXPECT_EQ(ours[kTorchZipFirstStorage].name, "data/0");
}

TEST(TorchZip, ReaderFindsWhatTheLayoutPlaced) {
  for (const uint32_t alignment : {64U, 128U, 4096U, 32768U}) {
    const std::string file = small_archive(alignment);
    const Archive archive = *open_archive(file);
    EXPECT_EQ(archive.contents.archive, "model");
    EXPECT_EQ(data_of(file, archive.entries[archive.contents.pickle]), "xxxxxxx");
    EXPECT_EQ(data_of(file, archive.entries[*archive.contents.byte_order]), "little");
    EXPECT_EQ(data_of(file, archive.entries[*archive.contents.alignment]), fmt::format("{}", alignment));
    ASSERT_EQ(archive.contents.storages.size(), 3u);
    for (const char* key : {"0", "1", "2"}) {
      const ZipEntry& entry = archive.entries[*archive.contents.find_storage(archive.entries, key)];
      EXPECT_EQ(entry.name, fmt::format("model/data/{}", key));
      const uint64_t begin = *zip_data_begin(entry, bytes_of(file).subspan(entry.header_begin));
      EXPECT_EQ(begin % alignment, 0u);
      EXPECT_EQ(begin, torch_zip_data_begin(entry.header_begin, entry.name.size(), entry.bytes, alignment));
    }
    EXPECT_EQ(archive.contents.find_storage(archive.entries, "3"), std::nullopt);
  }
}

TEST(TorchZip, RecordsAndPlacesAbove4GiBTakeZip64Fields) {
  const std::vector<ZipRecord> records = {{"data.pkl", 100},           {"version", 2},
                                          {"data/0", UINT32_MAX},      {"data/1", 5},
                                          {"data/2", UINT64_MAX >> 4}, {"data/3", 0}};
  const TorchZipLayout layout = *TorchZipLayout::create("a", records, 4096);
  const std::vector<uint32_t> sums = {1, 2, 3, 4, 5, 6};
  const std::string end = layout.behind_last(sums);
  EXPECT_EQ(layout.data_end(5) + end.size(), layout.file_bytes());
  const ZipDirectory directory = *find_zip_directory(bytes_of(end), layout.file_bytes());
  EXPECT_EQ(directory.entries, 6u);
  const std::vector<ZipEntry> entries =
      *parse_zip_directory(bytes_of(end).subspan(directory.begin - layout.data_end(5), directory.bytes), directory);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(entries[i].bytes, records[i].bytes);
    EXPECT_EQ(entries[i].sum, records[i].bytes != 0 ? sums[i] : 0);
    const std::string before = layout.before(i, i > 0 ? sums[i - 1] : 0);
    EXPECT_EQ(layout.data_begin(i), (i > 0 ? layout.data_end(i - 1) : 0) + before.size());
    const uint64_t header = entries[i].header_begin - (i > 0 ? layout.data_end(i - 1) : 0);
    EXPECT_EQ(zip_data_begin(entries[i], bytes_of(before).subspan(header)).value(), layout.data_begin(i));
    EXPECT_EQ(layout.data_begin(i) % 4096, 0u);
  }
}

TEST(TorchZip, SeventyThousandRecords) {
  std::vector<ZipRecord> records = {{"data.pkl", 1}, {"version", 2}};
  for (int i = 0; i < 70'000; ++i)
    records.push_back({fmt::format("data/{}", i), 3});
  const TorchZipLayout layout = *TorchZipLayout::create("a", records, 64);
  const std::string end = layout.behind_last(std::vector<uint32_t>(records.size()));
  const ZipDirectory directory =
      *find_zip_directory(bytes_of(end).subspan(end.size() - kZipTailBytesMax), layout.file_bytes());
  EXPECT_EQ(directory.entries, 70'002u);
  const uint64_t end_begin = layout.file_bytes() - end.size();
  const std::vector<ZipEntry> entries =
      *parse_zip_directory(bytes_of(end).subspan(directory.begin - end_begin, directory.bytes), directory);
  const TorchZipContents contents = *torch_zip_contents_of(entries);
  EXPECT_EQ(entries[*contents.find_storage(entries, "69999")].name, "a/data/69999");
}

TEST(TorchZip, LayoutRefusesWhatTheFormatCannotHold) {
  EXPECT_FALSE(TorchZipLayout::create("a", {}, 64).has_value());
  EXPECT_FALSE(TorchZipLayout::create("a", {{"b", 1}}, 0).has_value());
  EXPECT_FALSE(TorchZipLayout::create("a", {{"b", 1}}, 96).has_value());
  EXPECT_FALSE(TorchZipLayout::create("a", {{"b", 1}}, 65536).has_value());
  EXPECT_FALSE(TorchZipLayout::create("a", {{"b", 1}}, 32).has_value());
  EXPECT_FALSE(TorchZipLayout::create("a", {{std::string(65536, 'b'), 1}}, 64).has_value());
  EXPECT_FALSE(TorchZipLayout::create("a", {{"b", UINT64_MAX}}, 64).has_value());
  EXPECT_FALSE(TorchZipLayout::create("a", {{"b", INT64_MAX - 100}}, 64).has_value());
}

TEST(TorchZip, ArchiveNamesAreThoseOfTorch) {
  EXPECT_EQ(torch_zip_archive_name("/x/y/model.pt"), "model");
  EXPECT_EQ(torch_zip_archive_name("model.tar.gz"), "model.tar");
  EXPECT_EQ(torch_zip_archive_name("/x.y/model"), "model");
  EXPECT_EQ(torch_zip_archive_name(".pt"), "archive");
  EXPECT_EQ(torch_zip_archive_name("/x/"), "archive");
  EXPECT_EQ(torch_zip_archive_name("mod\xC3\xA8le.pt"), "archive");
}

TEST(TorchZip, SerializationIdDependsOnNamesAndSums) {
  const TorchZipLayout a = *TorchZipLayout::create("a", {{"b", 1}, {"c", 1}, {"d", 1}}, 64);
  const TorchZipLayout b = *TorchZipLayout::create("a", {{"b", 1}, {"x", 1}, {"d", 1}}, 64);
  const std::vector<uint32_t> one = {1, 2, 0};
  const std::vector<uint32_t> two = {1, 3, 0};
  EXPECT_EQ(torch_zip_serialization_id(a, one).size(), kSerializationIdDigits);
  EXPECT_NE(torch_zip_serialization_id(a, one), torch_zip_serialization_id(a, two));
  EXPECT_NE(torch_zip_serialization_id(a, one), torch_zip_serialization_id(b, one));
}

TEST(TorchZip, FilesCutShortOrGrownAreRefused) {
  const std::string file = file_of_torch();
  for (size_t bytes = 0; bytes < file.size(); ++bytes)
    EXPECT_FALSE(open_archive(file.substr(0, bytes)).has_value()) << bytes;
  EXPECT_FALSE(open_archive(file + "more").has_value());
}

TEST(TorchZip, ACommentAndAddedMembersAreNoHindrance) {
  std::string file = file_of_torch();
  put(file, file.size() - 2, little<uint16_t>(5));
  file += "hello";
  EXPECT_TRUE(open_archive(file).has_value());
}

// One field of a good file made wrong, and what must be said.
TEST(TorchZip, FieldsThatDoNotAddUpAreRefused) {
  const std::string good = small_archive();
  const Archive archive = *open_archive(good);
  const size_t directory = archive.directory.begin;
  const size_t end = good.size() - kZipEndBytes;
  const size_t zip64 = end - kZip64LocatorBytes - kZip64EndBytes;
  const struct {
    const char* what;
    size_t at;
    std::string bytes;
    const char* said;
  } cases[] = {
      {"entry signature", directory, "XX", "signature"},
      {"name length", directory + 28, little<uint16_t>(60'000), "behind the directory"},
      {"comment length", directory + 32, little<uint16_t>(60'000), "comment"},
      {"sizes differ", directory + 20, little<uint32_t>(6), "two sizes differ"},
      {"size over the next", directory + 20, little<uint32_t>(5000) + little<uint32_t>(5000), "overlaps"},
      {"saturated size without field", directory + 20, little<uint32_t>(UINT32_MAX) + little<uint32_t>(UINT32_MAX),
       "no ZIP64 field"},
      {"header in the directory", directory + 42, little<uint32_t>(static_cast<uint32_t>(directory)), "overlaps"},
      {"header behind the file", directory + 42, little<uint32_t>(1U << 30), "overlaps"},
      {"zip64 signature", zip64, "XX", "signature"},
      {"entries", zip64 + 24, little<uint64_t>(UINT64_MAX / 46) + little<uint64_t>(UINT64_MAX / 46), "entries in"},
      {"entries of this disk", zip64 + 24, little<uint64_t>(1), "several disks"},
      {"disk", zip64 + 16, little<uint32_t>(1), "several disks"},
      {"disk of the directory", zip64 + 20, little<uint32_t>(1), "several disks"},
      {"length of the end record", zip64 + 4, little<uint64_t>(43), "several disks"},
      {"number of disks", end - kZip64LocatorBytes + 16, little<uint32_t>(2), "several disks"},
      {"disk of a record", directory + 34, little<uint16_t>(1), "another disk"},
      {"a folder with contents", directory + 38, little<uint32_t>(0x10), "a folder"},
      {"directory bytes", zip64 + 40, little<uint64_t>(UINT64_MAX), "overlaps its end record"},
      {"directory begin", zip64 + 48, little<uint64_t>(UINT64_MAX - 10), "overlaps its end record"},
      {"locator", end - kZip64LocatorBytes + 8, little<uint64_t>(UINT64_MAX), "does not lie where"},
      {"locator signature", end - kZip64LocatorBytes, "XX", nullptr},  // then the 32-bit fields count
  };
  for (const auto& one : cases) {
    std::string file = good;
    put(file, one.at, one.bytes);
    const Result<Archive> opened = open_archive(file);
    if (one.said == nullptr) {
      EXPECT_TRUE(opened.has_value()) << one.what;
      continue;
    }
    ASSERT_FALSE(opened.has_value()) << one.what;
    EXPECT_EQ(opened.error().code, ErrorCode::corrupt);
    EXPECT_NE(opened.error().detail.find(one.said), std::string::npos) << one.what << ": " << opened.error().detail;
  }
}

TEST(TorchZip, LocalHeadersThatDisagreeAreRefused) {
  const std::string good = small_archive();
  const Archive archive = *open_archive(good);
  const ZipEntry& entry = archive.entries[*archive.contents.find_storage(archive.entries, "0")];
  for (const auto& [at, bytes] :
       {std::pair<size_t, std::string>{0, "XX"}, {26, little<uint16_t>(60'000)}, {28, little<uint16_t>(60'000)}}) {
    std::string file = good;
    put(file, entry.header_begin + at, bytes);
    EXPECT_FALSE(zip_data_begin(entry, bytes_of(file).subspan(entry.header_begin)).has_value()) << at;
  }
  EXPECT_FALSE(zip_data_begin(entry, bytes_of(good).subspan(entry.header_begin, 29)).has_value());
}

TEST(TorchZip, ArchivesThatTorchDidNotWriteAreNamed) {
  const auto refusal = [](const std::vector<ZipRecord>& records) {
    std::vector<ZipEntry> entries;
    for (const ZipRecord& record : records)
      entries.push_back({.name = record.name, .bytes = record.bytes});
    const Result<TorchZipContents> contents = torch_zip_contents_of(entries);
    return contents ? std::string() : contents.error().detail;
  };
  EXPECT_NE(refusal({}).find("empty"), std::string::npos);
  EXPECT_NE(refusal({{"data.pkl"}, {"version"}}).find("no folder"), std::string::npos);
  EXPECT_NE(refusal({{"a/version"}}).find("data.pkl"), std::string::npos);
  EXPECT_NE(refusal({{"a/data.pkl"}}).find("version"), std::string::npos);
  EXPECT_NE(refusal({{"a/data.pkl"}, {"a/version"}, {"a/constants.pkl"}}).find("TorchScript"), std::string::npos);
  EXPECT_NE(refusal({{"a/data.pkl"}, {"a/data.pkl"}, {"a/version"}}).find("twice"), std::string::npos);
  EXPECT_NE(refusal({{"a/data.pkl"}, {"a/version"}, {"a/data/0"}, {"a/data/0"}}).find("twice"), std::string::npos);
  EXPECT_EQ(refusal({{"a/data.pkl"}, {"a/version"}, {"b/data/0"}, {"a/data/0"}, {"b/data.pkl"}}), "");
}

}  // namespace
}  // namespace headrace::format
