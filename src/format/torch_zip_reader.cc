// SPDX-License-Identifier: Apache-2.0
// See the header. Numbers from the file are compared with what is there before they are added or allocated.
// Any thread.
// Owns what the header says.
#include "format/torch_zip_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/little_endian.h"
#include "format/format_error.h"

namespace headrace::format {
namespace {

using base::load_little;

std::unexpected<Error> corrupt(uint64_t offset, std::string detail) {
  return format::corrupt("read zip directory", offset, std::move(detail));
}

// 64-bit values in the order of the fields that say "see here".
class Zip64Extra {
 public:
  explicit Zip64Extra(std::span<const std::byte> extra) {
    while (extra.size() >= 4) {
      const auto id = load_little<uint16_t>(extra, 0);
      const auto bytes = load_little<uint16_t>(extra, 2);
      if (bytes > extra.size() - 4) return;
      if (id == kZip64ExtraId) {
        values_ = extra.subspan(4, bytes);
        return;
      }
      extra = extra.subspan(4U + bytes);
    }
  }
  std::optional<uint64_t> next() {
    if (values_.size() < 8) return std::nullopt;
    const auto value = load_little<uint64_t>(values_, 0);
    values_ = values_.subspan(8);
    return value;
  }

 private:
  std::span<const std::byte> values_;
};

// The end record is followed by its comment and nothing else. Searched from the end: a comment may hold a signature.
std::optional<size_t> find_end_record(std::span<const std::byte> tail) {
  if (tail.size() < kZipEndBytes) return std::nullopt;
  for (size_t at = tail.size() - kZipEndBytes + 1; at-- > 0;) {
    if (load_little<uint32_t>(tail, at) != kZipEndSignature) continue;
    if (load_little<uint16_t>(tail, at + 20) == tail.size() - at - kZipEndBytes) return at;
  }
  return std::nullopt;
}

}  // namespace

bool is_zip(std::span<const std::byte> first) noexcept {
  return first.size() >= 4 && load_little<uint32_t>(first, 0) == kZipLocalSignature;
}

Result<ZipDirectory> find_zip_directory(std::span<const std::byte> tail, uint64_t file_bytes) {
  const uint64_t tail_begin = file_bytes - tail.size();
  const std::optional<size_t> end = find_end_record(tail);
  if (!end) {
    return corrupt(tail_begin,
                   "no zip end record at the end of the file: it was cut short while it was written or copied, or "
                   "bytes were added behind it");
  }
  ZipDirectory directory;
  directory.entries = load_little<uint16_t>(tail, *end + 10);
  directory.bytes = load_little<uint32_t>(tail, *end + 12);
  directory.begin = load_little<uint32_t>(tail, *end + 16);
  uint64_t limit = tail_begin + *end;  // the directory ends here or before
  const bool saturated = directory.entries == kZip16Max || directory.bytes == kZip32Max || directory.begin == kZip32Max;
  const bool locator =
      *end >= kZip64LocatorBytes && load_little<uint32_t>(tail, *end - kZip64LocatorBytes) == kZip64LocatorSignature;
  if (saturated && !locator) return corrupt(limit, "the zip end record points to a ZIP64 record, and there is none");
  if (locator) {
    const auto zip64_begin = load_little<uint64_t>(tail, *end - kZip64LocatorBytes + 8);
    if (zip64_begin < tail_begin || zip64_begin > limit - kZip64LocatorBytes - kZip64EndBytes ||
        *end < kZip64LocatorBytes + kZip64EndBytes)
      return corrupt(limit - kZip64LocatorBytes, "the ZIP64 end record does not lie where its locator says");
    const auto at = static_cast<size_t>(zip64_begin - tail_begin);
    if (load_little<uint32_t>(tail, at) != kZip64EndSignature)
      return corrupt(zip64_begin, "the ZIP64 end record does not begin with its signature");
    // Torch's reader, as most, knows archives of one disk.
    const uint64_t disks = uint64_t{load_little<uint32_t>(tail, at + 16)} | load_little<uint32_t>(tail, at + 20);
    if (disks != 0 || load_little<uint64_t>(tail, at + 24) != load_little<uint64_t>(tail, at + 32) ||
        load_little<uint64_t>(tail, at + 4) < kZip64EndBytes - 12 ||
        load_little<uint32_t>(tail, *end - kZip64LocatorBytes + 16) > 1)
      return corrupt(zip64_begin, "the ZIP64 end record is that of an archive on several disks, or damaged");
    directory.entries = load_little<uint64_t>(tail, at + 32);
    directory.bytes = load_little<uint64_t>(tail, at + 40);
    directory.begin = load_little<uint64_t>(tail, at + 48);
    limit = zip64_begin;
  }
  if (directory.begin > limit || directory.bytes > limit - directory.begin)
    return corrupt(limit, fmt::format("the zip directory is said to have {} bytes at offset {}, which overlaps its end "
                                      "record at {}",
                                      directory.bytes, directory.begin, limit));
  if (directory.entries > directory.bytes / kZipDirectoryEntryBytes)
    return corrupt(limit, fmt::format("the zip directory is said to have {} entries in {} bytes", directory.entries,
                                      directory.bytes));
  return directory;
}

namespace {

Result<ZipEntry> parse_entry(std::span<const std::byte> rest, uint64_t offset) {
  if (rest.size() < kZipDirectoryEntryBytes || load_little<uint32_t>(rest, 0) != kZipDirectorySignature)
    return corrupt(offset, "an entry of the zip directory does not begin with its signature");
  ZipEntry entry;
  entry.flags = load_little<uint16_t>(rest, 8);
  entry.method = load_little<uint16_t>(rest, 10);
  entry.version_needed = load_little<uint16_t>(rest, 6);
  entry.sum = load_little<uint32_t>(rest, 16);
  uint64_t compressed = load_little<uint32_t>(rest, 20);
  entry.bytes = load_little<uint32_t>(rest, 24);
  const auto name_bytes = load_little<uint16_t>(rest, 28);
  const auto extra_bytes = load_little<uint16_t>(rest, 30);
  entry.header_begin = load_little<uint32_t>(rest, 42);
  const auto disk = load_little<uint16_t>(rest, 34);
  const bool folder = (load_little<uint32_t>(rest, 38) & kZipAttributeFolder) != 0;
  if ((disk != 0 && disk != kZip16Max) || (folder && entry.bytes != 0))
    return corrupt(offset, "an entry of the zip directory is on another disk, or is a folder with contents");
  if (size_t{name_bytes} + extra_bytes > rest.size() - kZipDirectoryEntryBytes)
    return corrupt(offset, "an entry of the zip directory ends behind the directory");
  const std::span<const std::byte> name = rest.subspan(kZipDirectoryEntryBytes, name_bytes);
  entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  Zip64Extra extra(rest.subspan(kZipDirectoryEntryBytes + name_bytes, extra_bytes));
  for (uint64_t* field : {&entry.bytes, &compressed, &entry.header_begin}) {
    if (*field != kZip32Max) continue;
    const std::optional<uint64_t> value = extra.next();
    if (!value)
      return corrupt(offset, fmt::format("record {} has no ZIP64 field for a size or place that needs one",
                                         quote_name(entry.name)));
    *field = *value;
  }
  if (entry.method == 0 && compressed != entry.bytes)
    return corrupt(offset, fmt::format("record {} is stored, but its two sizes differ: {} and {}",
                                       quote_name(entry.name), compressed, entry.bytes));
  // A compressed record takes other room than its size; only its place is of use here.
  if (entry.method != 0) entry.bytes = compressed;
  return entry;
}

}  // namespace

Result<std::vector<ZipEntry>> parse_zip_directory(std::span<const std::byte> directory, const ZipDirectory& where) {
  if (where.entries > UINT32_MAX) return corrupt(where.begin, "the zip directory has too many entries");
  std::vector<ZipEntry> entries;
  entries.reserve(where.entries);  // at most one for each 46 bytes that are there
  size_t at = 0;
  for (uint64_t i = 0; i < where.entries; ++i) {
    Result<ZipEntry> entry = parse_entry(directory.subspan(at), where.begin + at);
    if (!entry) return std::unexpected(std::move(entry).error());
    at += kZipDirectoryEntryBytes + load_little<uint16_t>(directory, at + 28) +
          load_little<uint16_t>(directory, at + 30) + load_little<uint16_t>(directory, at + 32);
    if (at > directory.size()) return corrupt(where.begin, "a comment in the zip directory ends behind the directory");
    entries.push_back(*std::move(entry));
  }
  std::vector<uint32_t> order(entries.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<uint32_t>(i);
  std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
    return std::pair(entries[a].header_begin, a) < std::pair(entries[b].header_begin, b);
  });
  for (size_t i = 0; i < order.size(); ++i) {
    ZipEntry& entry = entries[order[i]];
    entry.limit = i + 1 < order.size() ? entries[order[i + 1]].header_begin : where.begin;
    // The local header repeats the name; what its extra field takes is known once it is read.
    const uint64_t least = kZipLocalHeaderBytes + entry.name.size();
    if (entry.header_begin > entry.limit || entry.limit - entry.header_begin < least ||
        entry.bytes > entry.limit - entry.header_begin - least)
      return corrupt(entry.header_begin, fmt::format("record {} of {} bytes overlaps what follows at offset {}",
                                                     quote_name(entry.name), entry.bytes, entry.limit));
  }
  return entries;
}

Result<uint64_t> zip_data_begin(const ZipEntry& entry, std::span<const std::byte> header) {
  if (header.size() < kZipLocalHeaderBytes || load_little<uint32_t>(header, 0) != kZipLocalSignature)
    return corrupt(entry.header_begin,
                   fmt::format("record {} does not begin with a zip header", quote_name(entry.name)));
  const uint64_t begin =
      entry.header_begin + kZipLocalHeaderBytes + load_little<uint16_t>(header, 26) + load_little<uint16_t>(header, 28);
  if (begin > entry.limit || entry.bytes > entry.limit - begin)
    return corrupt(entry.header_begin,
                   fmt::format("the header of record {} leaves too little room for its {} bytes before offset {}",
                               quote_name(entry.name), entry.bytes, entry.limit));
  return begin;
}

std::optional<size_t> TorchZipContents::find_storage(std::span<const ZipEntry> entries, std::string_view key) const {
  const std::string name = fmt::format("{}/data/{}", archive, key);
  const auto found =
      std::ranges::lower_bound(storages, name, {}, [&](size_t i) -> const std::string& { return entries[i].name; });
  if (found == storages.end() || entries[*found].name != name) return std::nullopt;
  return *found;
}

Result<TorchZipContents> torch_zip_contents_of(std::span<const ZipEntry> entries) {
  const auto not_torch = [](std::string detail) { return corrupt(0, std::move(detail)); };
  if (entries.empty()) return not_torch("the zip archive is empty");
  const size_t slash = entries.front().name.find('/');
  if (slash == std::string::npos)
    return not_torch("the zip archive was not written by torch.save: its first record is in no folder");
  TorchZipContents contents;
  contents.archive = entries.front().name.substr(0, slash);
  std::optional<size_t> pickle;
  bool version = false;
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string_view name = entries[i].name;
    if (!name.starts_with(contents.archive) || name.size() <= slash || name[slash] != '/') continue;
    const std::string_view inside = name.substr(slash + 1);
    std::optional<size_t>* once = nullptr;
    if (inside == "data.pkl") once = &pickle;
    if (inside == "byteorder") once = &contents.byte_order;
    if (inside == ".storage_alignment") once = &contents.alignment;
    if (once != nullptr) {
      if (once->has_value())
        return corrupt(entries[i].header_begin, fmt::format("record {} is there twice", quote_name(name)));
      *once = i;
    }
    if (inside == "version" || inside == ".data/version") version = true;
    if (inside == "constants.pkl") return not_torch("this is a TorchScript archive; load it with torch.jit.load");
    if (inside.starts_with("data/")) contents.storages.push_back(i);
  }
  if (!pickle) return not_torch("the zip archive was not written by torch.save: it has no record data.pkl");
  if (!version) return not_torch("the zip archive was not written by torch.save: it has no record version");
  contents.pickle = *pickle;
  std::ranges::sort(contents.storages, {}, [&](size_t i) -> const std::string& { return entries[i].name; });
  const auto twice = std::ranges::adjacent_find(contents.storages,
                                                [&](size_t a, size_t b) { return entries[a].name == entries[b].name; });
  if (twice != contents.storages.end())
    return corrupt(entries[*twice].header_begin,
                   fmt::format("record {} is there twice", quote_name(entries[*twice].name)));
  return contents;
}

}  // namespace headrace::format
