// SPDX-License-Identifier: Apache-2.0
// Where everything of a torch zip archive lies, and the bytes around the records: see docs/formats/torch-zip.md.
// Pure: a function of names and sizes. The sums of the records come later, with the bytes that hold them.
// Owns its names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/error.h>

namespace headrace::format {

struct ZipRecord {
  std::string name;  // without the archive's: "data.pkl", "data/0"
  uint64_t bytes = 0;
};

class TorchZipLayout {
 public:
  // Data of record i begins at a multiple of `alignment_bytes`, a power of two up to 32768 (the padding's length has 16 bits).
  [[nodiscard]] static Result<TorchZipLayout> create(std::string archive, std::vector<ZipRecord> records,
                                                     uint32_t alignment_bytes);

  [[nodiscard]] size_t size() const noexcept { return records_.size(); }
  [[nodiscard]] const ZipRecord& record(size_t i) const noexcept { return records_[i]; }
  [[nodiscard]] uint64_t data_begin(size_t i) const noexcept { return data_begin_[i]; }
  [[nodiscard]] uint64_t data_end(size_t i) const noexcept { return data_begin_[i] + records_[i].bytes; }
  [[nodiscard]] uint64_t file_bytes() const noexcept { return file_bytes_; }

  // What stands between the data of record i - 1, whose sum it holds, and that of record i.
  [[nodiscard]] std::string before(size_t i, uint32_t sum_of_previous) const;
  // What stands behind the data of the last record, to the end of the file; `sums` are those of all records.
  [[nodiscard]] std::string behind_last(std::span<const uint32_t> sums) const;

 private:
  void append_name(std::string& text, size_t i) const;
  void append_directory_entry(std::string& text, size_t i, uint32_t sum) const;

  std::string archive_;
  uint32_t alignment_bytes_ = 0;
  std::vector<ZipRecord> records_;
  std::vector<uint64_t> header_begin_;
  std::vector<uint64_t> data_begin_;
  uint64_t directory_begin_ = 0;
  uint64_t file_bytes_ = 0;
};

// Where the data of a record begins whose local header stands at `header_begin`, as torch lays it out.
[[nodiscard]] uint64_t torch_zip_data_begin(uint64_t header_begin, uint64_t name_bytes, uint64_t record_bytes,
                                            uint32_t alignment_bytes) noexcept;

// The records that torch.save writes around the storages, and those of the storages, in its order. `data/0` is record
// kTorchZipFirstStorage; behind the storages come "version" and ".data/serialization_id".
[[nodiscard]] std::vector<ZipRecord> torch_zip_records(uint64_t pickle_bytes, std::span<const uint64_t> storage_bytes,
                                                       uint32_t alignment_bytes);
inline constexpr size_t kTorchZipFirstStorage = 4;
// Contents of records 1 to 3 and of "version".
[[nodiscard]] std::string torch_zip_contents(const ZipRecord& record, uint32_t alignment_bytes);
// 40 digits made of the names and of the sums of the records before it. No reader checks them.
[[nodiscard]] std::string torch_zip_serialization_id(const TorchZipLayout& layout, std::span<const uint32_t> sums);

// The name inside the archive for a file of this path: as torch, its name without folder and last suffix, "archive" if not ASCII.
[[nodiscard]] std::string torch_zip_archive_name(std::string_view path);

}  // namespace headrace::format
