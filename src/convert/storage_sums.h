// SPDX-License-Identifier: Apache-2.0
// What files hold to check their storages by, compared so that damage is not written on with a sum that says it is whole: the
// CRC-32 while the bytes go by; where there is none, what stands in front of each storage.
// One thread.
// Borrows the set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <headrace/checkpoint_set.h>

namespace headrace::convert {

// Some bytes of a storage.
struct StorageRange {
  uint32_t file = 0;     // index into the set's files
  uint32_t storage = 0;  // index into that file's storages
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

class StorageSums {
 public:
  explicit StorageSums(const CheckpointSet& set) : set_(&set) {}

  // Announces what take() will be given, in this order. Storages of which that is not all, from front to back, are read and
  // compared now: a tensor that is a part of its storage is known to be good only with the rest of it. ErrorCode::corrupt.
  [[nodiscard]] Status expect(Handle& handle, std::span<const StorageRange> ranges,
                              const std::function<bool()>& interrupted);
  // The bytes of `range`. Those that came before are passed over. ErrorCode::corrupt with the last byte of a damaged storage.
  [[nodiscard]] Status take(const StorageRange& range, std::span<const std::byte> bytes);

 private:
  struct Progress {
    uint64_t bytes = 0;  // from the front, that `sum` is of
    uint32_t sum = 0;
  };
  using Key = std::pair<uint32_t, uint32_t>;  // file, storage
  [[nodiscard]] const StoredBytes& storage(Key key) const { return set_->files()[key.first].storages()[key.second]; }
  [[nodiscard]] Status read_whole(Handle& handle, std::span<const Key> storages,
                                  const std::function<bool()>& interrupted);
  [[nodiscard]] Status check_leads(Handle& handle, std::span<const Key> storages,
                                   const std::function<bool()>& interrupted);

  const CheckpointSet* set_;
  std::map<Key, Progress> progress_;
  std::set<Key> without_sum_;  // whose leads were looked at
};

// "the CRC-32 of WHAT (... bytes at offset ...) is ..., and the file says ...".
[[nodiscard]] std::string sum_mismatch(std::string_view what, uint64_t offset_bytes, uint64_t bytes, uint32_t sum,
                                       uint32_t expected);
// The name of a tensor in this storage; empty where there is none.
[[nodiscard]] std::string tensor_in_storage(const CheckpointFile& file, uint32_t storage);
// Of storages that no listed tensor lies in: those of a module that was pickled whole, or of types that are not known.
[[nodiscard]] uint64_t unlisted_bytes(const CheckpointFile& file);

}  // namespace headrace::convert
