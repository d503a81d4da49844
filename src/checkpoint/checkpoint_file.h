// SPDX-License-Identifier: Apache-2.0
// What a CheckpointFile knows once it is open. The formats fill it in; reading is the same for all of them.
// Const once open; any thread.
// Owns the open file, the pickle's bytes and everything parsed from them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/checkpoint.h>

#include "format/torch_legacy.h"
#include "format/torch_zip_reader.h"

namespace headrace {

class CheckpointFile::Impl {
 public:
  File file;
  std::string path;
  CheckpointFormat format = CheckpointFormat::torch_zip;
  uint64_t file_bytes = 0;
  std::vector<StoredBytes> storages;
  std::vector<StoredTensor> tensors;
  std::vector<StoredValue> other_values;
  std::optional<Metadata> metadata;
  std::vector<std::byte> pickle_bytes;  // what the object's pickle lies in
  uint64_t pickle_begin = 0;            // in those bytes
  std::optional<Pickle> pickle;         // views pickle_bytes
  bool little_endian = true;

  // The format's own bytes in front of each storage, which must say what was concluded without them; as storages.
  std::vector<uint64_t> lead_begin;
  std::vector<format::ZipEntry> zip_entries;         // of the storages of a zip archive
  std::vector<format::ZipEntry> other_entries;       // and of its other records
  std::vector<format::LegacyStorage> legacy_places;  // of a legacy file

  [[nodiscard]] bool has_sums() const noexcept;
  [[nodiscard]] Status check_lead(uint32_t storage, std::span<const std::byte> lead) const;
  // An error about the contents, with the path and, for people, the tensor.
  [[nodiscard]] Error corrupt(uint64_t offset, uint64_t bytes, std::string detail) const;
  [[nodiscard]] std::string describe(uint32_t storage) const;
};

namespace checkpoint {

// Reads small ranges of a file; blocks.
class Reader {
 public:
  Reader(Handle& handle, const File& file, const std::function<bool()>& interrupted)
      : handle_(handle), file_(file), interrupted_(interrupted) {}

  struct Range {
    uint64_t offset_bytes = 0;
    uint64_t bytes = 0;
  };
  [[nodiscard]] Result<std::vector<std::byte>> read(const Range& range);
  // All at once, one behind the other.
  [[nodiscard]] Result<std::vector<std::byte>> read_many(std::span<const Range> ranges);

 private:
  Handle& handle_;
  const File& file_;
  const std::function<bool()>& interrupted_;
};

// `first` are the first bytes of the file, at most kFirstBytes. Each fills in what its format has.
inline constexpr uint64_t kFirstBytes = uint64_t{256} << 10;
[[nodiscard]] Status open_torch_zip(CheckpointFile::Impl& file, Reader& reader, std::span<const std::byte> first,
                                    const LoadOptions& options);
[[nodiscard]] Status open_torch_legacy(CheckpointFile::Impl& file, Reader& reader, std::span<const std::byte> first,
                                       const LoadOptions& options);
[[nodiscard]] Status open_safetensors(CheckpointFile::Impl& file, Reader& reader, std::span<const std::byte> first);

// The bytes of the storage that a persistent id names; nothing when its type is not one of torch's.
[[nodiscard]] std::optional<uint64_t> storage_bytes(const Pickle& pickle, const PickleStorage& storage);
// The element type of a storage class, given by its qualified name; nothing for UntypedStorage and unknown ones.
[[nodiscard]] std::optional<DType> storage_dtype(const Pickle& pickle, const PickleStorage& storage);
// A storage that a pickle names, and the first node that does.
struct NamedStorage {
  std::string_view key;
  PickleNode node = 0;
};
// By key, each once. torch makes a storage of the first id that names it: ErrorCode::corrupt where another says otherwise.
[[nodiscard]] Result<std::vector<NamedStorage>> named_storages(const Pickle& pickle);
struct PickledThings {
  std::vector<StoredTensor> tensors;
  std::vector<StoredValue> others;
};
// What dicts, lists and tuples of the pickle lead to. Each container is looked into once.
[[nodiscard]] Result<PickledThings> list_things(const CheckpointFile::Impl& file);

}  // namespace checkpoint
}  // namespace headrace
