// SPDX-License-Identifier: Apache-2.0
// The JSON beside the shards of a checkpoint that says which tensor lies in which file: docs/formats/shard-index.md.
// Any thread: pure functions over bytes; no exception leaves.
// Owns what it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <headrace/error.h>

namespace headrace::format {

// One that is longer is refused before it is read: a million tensors need a tenth of it.
inline constexpr uint64_t kShardIndexBytesMax = uint64_t{256} << 20;

struct ShardIndexText {
  std::vector<std::pair<std::string, std::string>> files_by_tensor;  // sorted by tensor; file names without a folder
  std::optional<uint64_t> total_bytes;
};

// Fails with ErrorCode::corrupt for what is no JSON, has no weight_map from names to names, or names a file elsewhere.
Result<ShardIndexText> parse_shard_index(std::span<const std::byte> json) noexcept;

// The same, written: indented as the field writes it, names sorted.
std::string write_shard_index(const ShardIndexText& index);

}  // namespace headrace::format
