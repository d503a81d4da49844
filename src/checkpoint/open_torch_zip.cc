// SPDX-License-Identifier: Apache-2.0
// Opens a torch zip archive: its directory, its pickle, and where its storages lie.
// One thread beside the handle's.
// Fills in a CheckpointFile::Impl.
#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/crc32.h"
#include "base/little_endian.h"
#include "checkpoint/checkpoint_file.h"
#include "format/format_error.h"
#include "format/torch_zip_layout.h"

namespace headrace::checkpoint {
namespace {

using format::ZipDirectory;
using format::ZipEntry;

constexpr const char* kReading = "read torch file";
constexpr uint64_t kDirectoryBytesMax = uint64_t{4} << 30;
constexpr uint64_t kPickleBytesMax = uint64_t{4} << 30;

Status refuse_unless_stored(const ZipEntry& entry) {
  if (entry.method == 0 && (entry.flags & format::kZipFlagsUnreadable) == 0) return {};
  return std::unexpected(Error{
      .code = ErrorCode::unavailable,
      .operation = kReading,
      .offset_bytes = entry.header_begin,
      .detail = fmt::format("record {} is compressed or encrypted, and headrace reads stored records only; torch.save "
                            "writes no others: load the file with torch.load and save it again",
                            format::quote_name(entry.name))});
}

// The whole of a small record, from `first` where it lies in there. `summed`: it is compared with its sum.
Result<std::vector<std::byte>> read_record(Reader& reader, const ZipEntry& entry, std::span<const std::byte> first,
                                           bool summed) {
  if (Status stored = refuse_unless_stored(entry); !stored) return std::unexpected(std::move(stored).error());
  std::vector<std::byte> all;
  const uint64_t bytes = std::min(entry.limit - entry.header_begin, entry.bytes + format::kZipLocalHeaderBytesMax);
  if (entry.limit <= first.size()) {
    const std::span<const std::byte> there = first.subspan(entry.header_begin, bytes);
    all.assign(there.begin(), there.end());
  } else {
    Result<std::vector<std::byte>> read = reader.read({entry.header_begin, bytes});
    if (!read) return read;
    all = *std::move(read);
  }
  const Result<uint64_t> begin = format::zip_data_begin(entry, all);
  if (!begin) return std::unexpected(begin.error());
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(*begin - entry.header_begin));
  all.resize(entry.bytes);
  if (const uint32_t sum = summed ? base::crc32(all) : entry.sum; sum != entry.sum) {
    return format::corrupt(
        kReading, *begin,
        fmt::format("the CRC-32 of record {} is {:08x}, and the file says {:08x}: the file was damaged after it was "
                    "written. Take another copy, or look at what is left with verify=off",
                    format::quote_name(entry.name), sum, entry.sum));
  }
  return all;
}

// Places as torch lays records out, if torch's marks are on the entry and what follows each says that it did; else the local
// headers are read.
Status find_places(CheckpointFile::Impl& file, Reader& reader, uint32_t alignment) {
  std::vector<Reader::Range> headers;
  std::vector<uint32_t> unsure;
  for (uint32_t i = 0; i < file.zip_entries.size(); ++i) {
    const ZipEntry& entry = file.zip_entries[i];
    const uint64_t begin = format::torch_zip_data_begin(entry.header_begin, entry.name.size(), entry.bytes, alignment);
    const bool zip64 = entry.bytes >= format::kZip32Max || entry.header_begin >= format::kZip32Max;
    const uint64_t descriptor = entry.bytes == 0 ? 0
                                : zip64          ? format::kZip64DescriptorBytes
                                                 : format::kZipDescriptorBytes;
    file.storages[i].offset_bytes = begin;
    const bool of_torch = entry.version_needed == 0 && (entry.flags & format::kZipFlagUtf8) != 0;
    if (of_torch && begin <= entry.limit && entry.limit - begin == entry.bytes + descriptor) continue;
    unsure.push_back(i);
    headers.push_back({entry.header_begin, format::kZipLocalHeaderBytes});
  }
  if (unsure.empty()) return {};
  const Result<std::vector<std::byte>> read = reader.read_many(headers);
  if (!read) return std::unexpected(read.error());
  for (size_t k = 0; k < unsure.size(); ++k) {
    const Result<uint64_t> begin =
        format::zip_data_begin(file.zip_entries[unsure[k]], std::span(*read).subspan(k * format::kZipLocalHeaderBytes));
    if (!begin) return std::unexpected(begin.error());
    file.storages[unsure[k]].offset_bytes = *begin;
  }
  return {};
}

// A writer told to leave the sums out writes zeros.
bool has_sums(std::span<const ZipEntry> entries) {
  return std::ranges::any_of(entries, [](const ZipEntry& entry) { return entry.sum != 0; });
}

// The storages that the pickle names, and those alone.
Status find_storages(CheckpointFile::Impl& file, std::span<const ZipEntry> entries,
                     const format::TorchZipContents& contents) {
  const Pickle& pickle = *file.pickle;
  const Result<std::vector<NamedStorage>> named = named_storages(pickle);
  if (!named) return std::unexpected(named.error());
  for (const NamedStorage& one : *named) {
    const PickleStorage storage = *pickle.storage(one.node);
    const std::optional<size_t> found = contents.find_storage(entries, storage.key);
    if (!found) {
      return format::corrupt(kReading, pickle.offset_bytes(one.node),
                             fmt::format("the pickle names storage {}, and the archive has no record of it",
                                         format::quote_name(storage.key)));
    }
    const ZipEntry& entry = entries[*found];
    const std::optional<uint64_t> bytes = storage_bytes(pickle, storage);
    if (bytes && *bytes != entry.bytes) {
      return format::corrupt(kReading, entry.header_begin,
                             fmt::format("record {} has {} bytes, and the pickle says {}",
                                         format::quote_name(entry.name), entry.bytes, *bytes));
    }
    if (Status stored = refuse_unless_stored(entry); !stored) return stored;
    file.storages.push_back(
        {.key = std::string(storage.key), .offset_bytes = 0, .bytes = entry.bytes, .crc32 = entry.sum});
    file.zip_entries.push_back(entry);
    file.lead_begin.push_back(entry.header_begin);
  }
  if (has_sums(entries)) return {};
  for (StoredBytes& storage : file.storages)
    storage.crc32.reset();
  return {};
}

}  // namespace

Status open_torch_zip(CheckpointFile::Impl& file, Reader& reader, std::span<const std::byte> first,
                      const LoadOptions& options) {
  const uint64_t tail_bytes = std::min(file.file_bytes, format::kZipTailBytesMax);
  const Result<std::vector<std::byte>> tail = reader.read({file.file_bytes - tail_bytes, tail_bytes});
  if (!tail) return std::unexpected(tail.error());
  const Result<ZipDirectory> where = format::find_zip_directory(*tail, file.file_bytes);
  if (!where) return std::unexpected(where.error());
  if (where->bytes > kDirectoryBytesMax)
    return format::corrupt(kReading, where->begin, "the zip directory is larger than 4 GiB");
  std::vector<std::byte> elsewhere;
  std::span<const std::byte> directory;
  const uint64_t tail_begin = file.file_bytes - tail_bytes;
  if (where->begin >= tail_begin) {
    directory = std::span(*tail).subspan(where->begin - tail_begin, where->bytes);
  } else {
    Result<std::vector<std::byte>> read = reader.read({where->begin, where->bytes});
    if (!read) return std::unexpected(std::move(read).error());
    elsewhere = *std::move(read);
    directory = elsewhere;
  }
  const Result<std::vector<ZipEntry>> entries = format::parse_zip_directory(directory, *where);
  if (!entries) return std::unexpected(entries.error());
  const Result<format::TorchZipContents> contents = format::torch_zip_contents_of(*entries);
  if (!contents) return std::unexpected(contents.error());

  const bool summed = options.verify != Verify::off && has_sums(*entries);
  const ZipEntry& pickle_entry = (*entries)[contents->pickle];
  if (pickle_entry.bytes >= kPickleBytesMax)
    return format::corrupt(kReading, pickle_entry.header_begin, "the pickle is larger than 4 GiB");
  Result<std::vector<std::byte>> pickle = read_record(reader, pickle_entry, first, summed);
  if (!pickle) return std::unexpected(std::move(pickle).error());
  file.pickle_bytes = *std::move(pickle);
  Result<Pickle> parsed =
      parse_pickle(file.pickle_bytes, {.unknown_globals = UnknownGlobals::collect, .protocols = options.protocols});
  if (!parsed) {
    parsed.error().detail += "; the offset is that in the record data.pkl";
    return std::unexpected(std::move(parsed).error());
  }
  file.pickle = *std::move(parsed);
  const auto text_of = [&](size_t entry) -> Result<std::string> {
    constexpr uint64_t kTextBytesMax = 64;
    if ((*entries)[entry].bytes > kTextBytesMax)
      return format::corrupt(kReading, (*entries)[entry].header_begin, "a record of a few letters is too long");
    const Result<std::vector<std::byte>> bytes = read_record(reader, (*entries)[entry], first, summed);
    if (!bytes) return std::unexpected(bytes.error());
    return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  };
  if (contents->byte_order) {
    const Result<std::string> order = text_of(*contents->byte_order);
    if (!order) return std::unexpected(order.error());
    file.little_endian = *order == "little";
    if (*order != "little" && *order != "big")
      return format::corrupt(kReading, (*entries)[*contents->byte_order].header_begin,
                             "the record byteorder says neither little nor big");
  }
  uint32_t alignment = 64;
  if (contents->alignment) {
    const Result<std::string> text = text_of(*contents->alignment);
    if (!text) return std::unexpected(text.error());
    uint32_t said = 0;
    std::from_chars(text->data(), text->data() + text->size(), said);
    if (said != 0 && (said & (said - 1)) == 0 && said <= 65536) alignment = said;
  }
  if (Status found = find_storages(file, *entries, *contents); !found) return found;
  std::vector<uint64_t> taken(file.lead_begin);
  std::ranges::sort(taken);
  std::ranges::copy_if(*entries, std::back_inserter(file.other_entries),
                       [&](const ZipEntry& entry) { return !std::ranges::binary_search(taken, entry.header_begin); });
  if (Status placed = find_places(file, reader, alignment); !placed) return placed;
  Result<PickledThings> things = list_things(file);
  if (!things) return std::unexpected(std::move(things).error());
  file.tensors = std::move(things->tensors);
  file.other_values = std::move(things->others);
  return {};
}

}  // namespace headrace::checkpoint
