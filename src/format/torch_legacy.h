// SPDX-License-Identifier: Apache-2.0
// torch's container from before zip files: pickles one behind the other, then the storages. docs/formats/torch-legacy.md.
// Any thread: pure functions over bytes; no file is opened here, and no exception leaves.
// Owns what it returns; arguments are borrowed for the call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/error.h>

namespace headrace::format {

// In front of each storage: how many elements it has, as a little-endian i64.
inline constexpr uint64_t kLegacyCountBytes = 8;
// is_torch_legacy never looks further.
inline constexpr uint64_t kLegacyMagicBytesMax = 32;

// Does a file that begins with `first` (its first kLegacyMagicBytesMax bytes, or all it has) begin with the pickled magic
// number? True for every pickle protocol that torch.save takes.
[[nodiscard]] bool is_torch_legacy(std::span<const std::byte> first) noexcept;

// How long is the one pickle that `rest` begins with?
using PickleLength = std::function<Result<uint64_t>(std::span<const std::byte> rest)>;

// The length of the three pickles in front of the object's: magic number, version, facts of the system. `first` is the
// front of the file. Magic and version are checked. The facts are known by their bytes if they are those that torch
// writes; others are measured by `pickle_length`, and refused if there is none. Fails with ErrorCode::corrupt, or with
// what `pickle_length` fails with.
Result<uint64_t> torch_legacy_lead_bytes(std::span<const std::byte> first,
                                         const PickleLength& pickle_length = {}) noexcept;

// A storage to be read: the list of keys gives the order, the persistent id in the object's pickle the rest.
struct LegacyStorageId {
  std::string_view key;
  uint64_t element_bytes = 1;
  uint64_t element_count = 0;
};

struct LegacyStorage {
  uint64_t count_offset_bytes = 0;  // in the file
  uint64_t data_offset_bytes = 0;
  uint64_t data_bytes = 0;
  uint64_t element_count = 0;  // what has to stand at count_offset_bytes
};

struct LegacyStorages {
  std::vector<LegacyStorage> storages;  // as the ids
  uint64_t end_bytes = 0;               // of the last one: where another object may begin
};

// Where the storages lie, from the end of the pickled keys on: known before any count is read, and all inside the file.
// Fails with ErrorCode::corrupt, or ErrorCode::system and ENOMEM.
Result<LegacyStorages> plan_legacy_storages(std::span<const LegacyStorageId> ids, uint64_t begin_bytes,
                                            uint64_t file_bytes) noexcept;

// Do the bytes read at count_offset_bytes say what the persistent id says? Fails with ErrorCode::corrupt.
Status check_legacy_count(const LegacyStorage& storage, std::string_view key,
                          std::span<const std::byte, kLegacyCountBytes> count) noexcept;

// A storage to be written.
struct LegacyEntry {
  std::string_view key;  // as the persistent ids of the object's pickle name it; UTF-8
  uint64_t element_count = 0;
  uint64_t bytes = 0;
};

// The file is: lead, the object's pickle, keys, and then for each of `order` its count and its bytes.
struct LegacyPlan {
  std::string lead;
  uint64_t object_offset_bytes = 0;
  std::string keys;  // the pickled list
  uint64_t keys_offset_bytes = 0;
  std::vector<uint32_t> order;  // indices of the entries, their keys sorted
  struct Place {
    std::array<std::byte, kLegacyCountBytes> count;
    uint64_t count_offset_bytes = 0;
    uint64_t data_offset_bytes = 0;
  };
  std::vector<Place> places;  // by index of the entry
  uint64_t file_bytes = 0;
};

// Where every byte goes; byte for byte what torch.save(..., _use_new_zipfile_serialization=False) writes around the same
// object's pickle. Fails with ErrorCode::invalid_argument for two storages of one key, a key that is not UTF-8, a count
// that does not divide its bytes, or more bytes than a file can have; or with ErrorCode::system and ENOMEM.
Result<LegacyPlan> plan_torch_legacy(uint64_t object_pickle_bytes, std::span<const LegacyEntry> entries) noexcept;

}  // namespace headrace::format
