// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, read and written; the format and every rule: docs/formats/safetensors.md.
// Any thread: pure functions over bytes; no file is opened here, and no exception leaves.
// Owns what it returns; arguments are borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <headrace/error.h>
#include <headrace/tensor.h>

namespace headrace::format {

// The u64 at the front of a file: how long the JSON behind it is.
inline constexpr uint64_t kSafetensorsLengthBytes = 8;
// The reference reader opens no file whose JSON is longer, so nothing longer is written here either.
inline constexpr uint64_t kSafetensorsHeaderMaxBytes = 100'000'000;
// Containers within containers, in fields that the format does not know: the reference's limit.
inline constexpr uint32_t kSafetensorsNestingMax = 127;
// The key beside the names of tensors under which the metadata stand.
inline constexpr std::string_view kSafetensorsMetadataKey = "__metadata__";

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::uint8;
  std::vector<uint64_t> shape;  // in elements as the file counts them: F4 has two to the byte
  uint64_t begin_bytes = 0;     // from the start of the data section
  uint64_t end_bytes = 0;
};

// In the order of the file.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;       // in the order of their bytes
  std::optional<SafetensorsMetadata> metadata;  // nullopt: the file has none, or null
  uint64_t data_begin_bytes = 0;                // offset in the file
  uint64_t file_bytes = 0;
};

// Reading, first step. `first` is the file's first eight bytes, or all it has. The length of the JSON comes back: at most
// kSafetensorsHeaderMaxBytes and inside the file, so that memory may be taken for it. Fails with ErrorCode::corrupt.
Result<uint64_t> safetensors_header_bytes(std::span<const std::byte> first, uint64_t file_bytes) noexcept;

// Second step. `json` is what stands behind the first eight bytes, as long as the first step said. In the result each
// tensor's range is as long as its shape and element type say, and each byte behind the JSON is in exactly one range.
// Takes memory in proportion to json.size() and never recurses. Fails with ErrorCode::corrupt and the offset in the file,
// or with ErrorCode::system and ENOMEM.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> json, uint64_t file_bytes) noexcept;

// A tensor to be written.
struct SafetensorsEntry {
  std::string_view name;            // UTF-8
  DType dtype = DType::uint8;       // one that the format has
  std::span<const uint64_t> shape;  // as in SafetensorsTensor
  uint64_t bytes = 0;               // of its data: what dtype and shape say
};

struct SafetensorsPlan {
  std::string head;             // the first bytes of the file: length, JSON, spaces to a multiple of 8
  std::vector<uint32_t> order;  // indices of the entries; in this order their bytes follow the head, without a gap
  std::vector<uint64_t> offsets_bytes;  // by index of the entry: where in the file its bytes begin
  uint64_t file_bytes = 0;
};

// Writing: where every byte goes. The head is, byte for byte, what safetensors 0.8 writes for the same tensors; metadata,
// which that writes in random order, stand as given. Fails with ErrorCode::invalid_argument, and nothing was written yet,
// for: a dtype that the format lacks, `bytes` that do not fit dtype and shape, two tensors or two keys of one name, a text
// that is not UTF-8, a tensor named __metadata__, JSON too long for any reader. Or with ErrorCode::system and ENOMEM.
Result<SafetensorsPlan> plan_safetensors(std::span<const SafetensorsEntry> entries,
                                         const std::optional<SafetensorsMetadata>& metadata = std::nullopt) noexcept;

// The bytes of a tensor's data, or why there is no such number.
std::expected<uint64_t, std::string_view> safetensors_bytes(DType dtype, std::span<const uint64_t> shape) noexcept;

// "F32 of shape [2, 3]", for messages.
std::string safetensors_kind(DType dtype, std::span<const uint64_t> shape);

}  // namespace headrace::format
