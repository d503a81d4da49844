// SPDX-License-Identifier: Apache-2.0
// The directory of a zip archive as torch.load reads it: stored records only, every field checked before it is believed.
// Pure; any thread. The caller reads the ranges that these functions name.
// Entries own their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/error.h>

#include "format/zip_fields.h"

namespace headrace::format {

struct ZipEntry {
  std::string name;
  uint64_t header_begin = 0;  // of the local header
  uint64_t bytes = 0;
  uint32_t sum = 0;  // CRC-32; 0 with bytes != 0: the writer left it out, or it is 0
  uint16_t flags = 0;
  uint16_t method = 0;          // 0: stored
  uint16_t version_needed = 0;  // torch says 0, which other tools do not
  // First byte that the record cannot have: the next record's header, or the directory.
  uint64_t limit = 0;
};

struct ZipDirectory {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

// True if a file that begins like this may be a zip archive.
[[nodiscard]] bool is_zip(std::span<const std::byte> first) noexcept;

// The last bytes of a file hold the end records, if the archive's comment (none, in torch's) leaves room.
inline constexpr uint64_t kZipTailBytesMax = kZip64EndBytes + kZip64LocatorBytes + kZipEndBytes + UINT16_MAX;
// `tail` is the last min(file_bytes, kZipTailBytesMax) bytes of a file.
[[nodiscard]] Result<ZipDirectory> find_zip_directory(std::span<const std::byte> tail, uint64_t file_bytes);

// In the order of the directory. Records that overlap each other or the directory are refused.
[[nodiscard]] Result<std::vector<ZipEntry>> parse_zip_directory(std::span<const std::byte> directory,
                                                                const ZipDirectory& where);

// Of a local header: with its name and extra field it ends where the data begins.
inline constexpr uint64_t kZipLocalHeaderBytesMax = kZipLocalHeaderBytes + 2 * uint64_t{UINT16_MAX};
// Where the data begins. `header` starts at entry.header_begin and is long enough to hold kZipLocalHeaderBytes.
[[nodiscard]] Result<uint64_t> zip_data_begin(const ZipEntry& entry, std::span<const std::byte> header);

// What torch.load would find in an archive; indices into the entries.
struct TorchZipContents {
  std::string archive;  // the prefix of its names, without the slash
  size_t pickle = 0;    // data.pkl
  std::optional<size_t> byte_order;
  std::optional<size_t> alignment;  // .storage_alignment
  std::vector<size_t> storages;     // data/KEY, sorted by the entry's name

  // The entry of storage `key`, which is what a persistent id names.
  [[nodiscard]] std::optional<size_t> find_storage(std::span<const ZipEntry> entries, std::string_view key) const;
};
[[nodiscard]] Result<TorchZipContents> torch_zip_contents_of(std::span<const ZipEntry> entries);

}  // namespace headrace::format
