// SPDX-License-Identifier: Apache-2.0
// See the header. The field layout is PKWARE's APPNOTE 6.3.10, sections 4.3.7 to 4.3.16 and 4.5.3, in torch's dialect.
// Any thread.
// Owns what the header says.
#include "format/torch_zip_layout.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"
#include "base/little_endian.h"
#include "format/zip_fields.h"

namespace headrace::format {
namespace {

using base::append_little;

uint64_t zip64_extra_bytes(uint64_t header_begin, uint64_t record_bytes) {
  const bool size = record_bytes >= kZip32Max;
  const bool place = header_begin >= kZip32Max;
  return size || place ? 4U + (size ? 16U : 0U) + (place ? 8U : 0U) : 0U;
}

uint64_t descriptor_bytes(uint64_t header_begin, uint64_t record_bytes) {
  if (record_bytes == 0) return 0;
  return zip64_extra_bytes(header_begin, record_bytes) != 0 ? kZip64DescriptorBytes : kZipDescriptorBytes;
}

void append_zip64_extra(std::string& text, uint64_t header_begin, uint64_t record_bytes) {
  const uint64_t bytes = zip64_extra_bytes(header_begin, record_bytes);
  if (bytes == 0) return;
  append_little<uint16_t>(text, kZip64ExtraId);
  append_little<uint16_t>(text, static_cast<uint16_t>(bytes - 4));
  if (record_bytes >= kZip32Max) {
    append_little<uint64_t>(text, record_bytes);
    append_little<uint64_t>(text, record_bytes);
  }
  if (header_begin >= kZip32Max) append_little<uint64_t>(text, header_begin);
}

void append_descriptor(std::string& text, uint64_t header_begin, uint64_t record_bytes, uint32_t sum) {
  const uint64_t bytes = descriptor_bytes(header_begin, record_bytes);
  if (bytes == 0) return;
  append_little<uint32_t>(text, kZipDescriptorSignature);
  append_little<uint32_t>(text, sum);
  if (bytes == kZip64DescriptorBytes) {
    append_little<uint64_t>(text, record_bytes);
    append_little<uint64_t>(text, record_bytes);
  } else {
    append_little<uint32_t>(text, static_cast<uint32_t>(record_bytes));
    append_little<uint32_t>(text, static_cast<uint32_t>(record_bytes));
  }
}

uint16_t flags_of(const ZipRecord& record) {
  return static_cast<uint16_t>(kZipFlagUtf8 | (record.bytes != 0 ? kZipFlagDescriptor : 0));
}

uint32_t saturated(uint64_t value) { return static_cast<uint32_t>(std::min(value, kZip32Max)); }

Error refused(std::string detail) {
  return {.code = ErrorCode::invalid_argument, .operation = "lay out torch file", .detail = std::move(detail)};
}

}  // namespace

uint64_t torch_zip_data_begin(uint64_t header_begin, uint64_t name_bytes, uint64_t record_bytes,
                              uint32_t alignment_bytes) noexcept {
  const uint64_t unpadded = header_begin + kZipLocalHeaderBytes + name_bytes +
                            zip64_extra_bytes(header_begin, record_bytes) + kPaddingHeaderBytes;
  return base::align_up(unpadded, uint64_t{alignment_bytes});
}

Result<TorchZipLayout> TorchZipLayout::create(std::string archive, std::vector<ZipRecord> records,
                                              uint32_t alignment_bytes) {
  constexpr uint32_t kAlignmentMin = 64;  // torch's own: every element type may lie there
  constexpr uint32_t kAlignmentMax = 32768;
  constexpr uint64_t kFileBytesMax = INT64_MAX;
  if (!std::has_single_bit(alignment_bytes) || alignment_bytes < kAlignmentMin || alignment_bytes > kAlignmentMax)
    return std::unexpected(refused(fmt::format("alignment is {}; a power of two from {} to {} is allowed",
                                               alignment_bytes, kAlignmentMin, kAlignmentMax)));
  if (records.empty()) return std::unexpected(refused("there is no record"));
  TorchZipLayout layout;
  layout.archive_ = std::move(archive);
  layout.alignment_bytes_ = alignment_bytes;
  layout.records_ = std::move(records);
  layout.header_begin_.reserve(layout.records_.size());
  layout.data_begin_.reserve(layout.records_.size());
  uint64_t position = 0;
  uint64_t directory_bytes = 0;
  for (const ZipRecord& record : layout.records_) {
    const uint64_t name_bytes = layout.archive_.size() + 1 + record.name.size();
    if (name_bytes > UINT16_MAX)
      return std::unexpected(refused(fmt::format("a record's name has {} bytes", name_bytes)));
    const uint64_t begin = torch_zip_data_begin(position, name_bytes, record.bytes, alignment_bytes);
    if (record.bytes > kFileBytesMax - begin - kZip64DescriptorBytes)
      return std::unexpected(refused(fmt::format("record '{}' would end past the largest file offset", record.name)));
    layout.header_begin_.push_back(position);
    layout.data_begin_.push_back(begin);
    directory_bytes += kZipDirectoryEntryBytes + name_bytes + zip64_extra_bytes(position, record.bytes);
    position = begin + record.bytes + descriptor_bytes(position, record.bytes);
  }
  layout.directory_begin_ = position;
  layout.file_bytes_ = position + directory_bytes + kZip64EndBytes + kZip64LocatorBytes + kZipEndBytes;
  if (layout.file_bytes_ > kFileBytesMax) return std::unexpected(refused("the file would be too large"));
  return layout;
}

void TorchZipLayout::append_name(std::string& text, size_t i) const {
  text += archive_;
  text += '/';
  text += records_[i].name;
}

std::string TorchZipLayout::before(size_t i, uint32_t sum_of_previous) const {
  std::string text;
  if (i > 0) append_descriptor(text, header_begin_[i - 1], records_[i - 1].bytes, sum_of_previous);
  const ZipRecord& record = records_[i];
  const uint64_t extra = zip64_extra_bytes(header_begin_[i], record.bytes);
  const uint64_t name_bytes = archive_.size() + 1 + record.name.size();
  const uint64_t padding =
      data_begin_[i] - header_begin_[i] - kZipLocalHeaderBytes - name_bytes - extra - kPaddingHeaderBytes;
  append_little<uint32_t>(text, kZipLocalSignature);
  append_little<uint16_t>(text, 0);  // version needed
  append_little<uint16_t>(text, flags_of(record));
  text.append(2 + 2 + 2 + 4 + 4 + 4, '\0');  // stored; no time, no date; sum and sizes stand behind the data
  append_little<uint16_t>(text, static_cast<uint16_t>(name_bytes));
  append_little<uint16_t>(text, static_cast<uint16_t>(extra + kPaddingHeaderBytes + padding));
  append_name(text, i);
  append_zip64_extra(text, header_begin_[i], record.bytes);
  text += "FB";
  append_little<uint16_t>(text, static_cast<uint16_t>(padding));
  text.append(padding, 'Z');
  return text;
}

void TorchZipLayout::append_directory_entry(std::string& text, size_t i, uint32_t sum) const {
  const ZipRecord& record = records_[i];
  append_little<uint32_t>(text, kZipDirectorySignature);
  append_little<uint16_t>(text, 0);  // version made by
  append_little<uint16_t>(text, 0);  // version needed
  append_little<uint16_t>(text, flags_of(record));
  text.append(2 + 2 + 2, '\0');  // stored; no time, no date
  append_little<uint32_t>(text, record.bytes != 0 ? sum : 0);
  append_little<uint32_t>(text, saturated(record.bytes));
  append_little<uint32_t>(text, saturated(record.bytes));
  append_little<uint16_t>(text, static_cast<uint16_t>(archive_.size() + 1 + record.name.size()));
  append_little<uint16_t>(text, static_cast<uint16_t>(zip64_extra_bytes(header_begin_[i], record.bytes)));
  text.append(2 + 2 + 2 + 4, '\0');  // comment, disk, attributes
  append_little<uint32_t>(text, saturated(header_begin_[i]));
  append_name(text, i);
  append_zip64_extra(text, header_begin_[i], record.bytes);
}

std::string TorchZipLayout::behind_last(std::span<const uint32_t> sums) const {
  std::string text;
  const size_t last = records_.size() - 1;
  text.reserve(file_bytes_ - data_end(last));
  append_descriptor(text, header_begin_[last], records_[last].bytes, sums[last]);
  for (size_t i = 0; i < records_.size(); ++i)
    append_directory_entry(text, i, sums[i]);
  const uint64_t directory_end = file_bytes_ - kZip64EndBytes - kZip64LocatorBytes - kZipEndBytes;
  const uint64_t directory_bytes = directory_end - directory_begin_;
  append_little<uint32_t>(text, kZip64EndSignature);
  append_little<uint64_t>(text, kZip64EndBytes - 12);  // of what follows
  append_little<uint16_t>(text, 0x031E);               // made by
  append_little<uint16_t>(text, 45);                   // needed
  append_little<uint32_t>(text, 0);                    // this disk
  append_little<uint32_t>(text, 0);                    // the directory's disk
  append_little<uint64_t>(text, records_.size());
  append_little<uint64_t>(text, records_.size());
  append_little<uint64_t>(text, directory_bytes);
  append_little<uint64_t>(text, directory_begin_);
  append_little<uint32_t>(text, kZip64LocatorSignature);
  append_little<uint32_t>(text, 0);
  append_little<uint64_t>(text, directory_end);
  append_little<uint32_t>(text, 1);  // disks
  append_little<uint32_t>(text, kZipEndSignature);
  append_little<uint16_t>(text, 0);
  append_little<uint16_t>(text, 0);
  const auto count = static_cast<uint16_t>(std::min<uint64_t>(records_.size(), kZip16Max));
  append_little<uint16_t>(text, count);
  append_little<uint16_t>(text, count);
  append_little<uint32_t>(text, saturated(directory_bytes));
  append_little<uint32_t>(text, saturated(directory_begin_));
  append_little<uint16_t>(text, 0);  // comment
  return text;
}

std::vector<ZipRecord> torch_zip_records(uint64_t pickle_bytes, std::span<const uint64_t> storage_bytes,
                                         uint32_t alignment_bytes) {
  std::vector<ZipRecord> records;
  records.reserve(storage_bytes.size() + kTorchZipFirstStorage + 2);
  records.push_back({.name = "data.pkl", .bytes = pickle_bytes});
  for (const char* name : {".format_version", ".storage_alignment", "byteorder"})
    records.push_back({.name = name, .bytes = 0});
  for (size_t i = 0; i < storage_bytes.size(); ++i)
    records.push_back({.name = fmt::format("data/{}", i), .bytes = storage_bytes[i]});
  records.push_back({.name = "version", .bytes = 0});
  records.push_back({.name = ".data/serialization_id", .bytes = kSerializationIdDigits});
  for (ZipRecord& record : records) {
    if (const std::string contents = torch_zip_contents(record, alignment_bytes); !contents.empty())
      record.bytes = contents.size();
  }
  return records;
}

std::string torch_zip_contents(const ZipRecord& record, uint32_t alignment_bytes) {
  if (record.name == ".format_version") return "1";
  if (record.name == ".storage_alignment") return fmt::format("{}", alignment_bytes);
  if (record.name == "byteorder") return "little";
  if (record.name == "version") return "3\n";
  return {};
}

std::string torch_zip_serialization_id(const TorchZipLayout& layout, std::span<const uint32_t> sums) {
  // FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
  uint64_t names = 0xCBF29CE484222325;
  uint64_t contents = names;
  const auto mix = [](uint64_t& hash, uint8_t byte) { hash = (hash ^ byte) * 0x100000001B3; };
  for (size_t i = 0; i + 1 < layout.size(); ++i) {
    for (const char letter : layout.record(i).name)
      mix(names, static_cast<uint8_t>(letter));
    for (int shift = 0; shift < 32; shift += 8)
      mix(contents, static_cast<uint8_t>(sums[i] >> shift));
  }
  return fmt::format("{:020}{:020}", names, contents);
}

std::string torch_zip_archive_name(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) name = name.substr(0, dot);
  constexpr size_t kNameBytesMax = 255;
  const bool plain = std::ranges::all_of(name, [](char letter) { return letter >= ' ' && letter <= '~'; });
  if (name.empty() || !plain || name.size() > kNameBytesMax) return "archive";
  return std::string(name);
}

}  // namespace headrace::format
