// SPDX-License-Identifier: Apache-2.0
// The file .metadata of torch's distributed checkpoints (DCP): which tensors there are and where their pieces lie. It is a
// pickle that torch loads by plain pickle.load; here nothing of it is run: docs/formats/dcp.md.
// Any thread: pure functions over bytes; no exception leaves.
// Owns what it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <headrace/error.h>
#include <headrace/tensor.h>

namespace headrace::format {

// Bytes of a file of the folder: for tensors and objects a whole archive of torch.save.
struct DcpPlace {
  uint32_t file = 0;  // index into DcpMetadata::files
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  bool transformed = false;  // by extensions of the writer's user: the bytes are no archive
};

struct DcpPiece {
  std::vector<uint64_t> offsets;  // of its first element in the tensor
  std::vector<uint64_t> shape;
  std::optional<uint32_t> place;  // index into DcpMetadata::places; none: the metadata do not say where it is
};

struct DcpTensor {
  std::string name;
  std::string dtype_name;      // torch's, without "torch."
  std::optional<DType> dtype;  // none: younger than headrace
  std::vector<uint64_t> shape;
  std::vector<DcpPiece> pieces;
};

struct DcpObject {
  std::string name;
  std::optional<uint32_t> place;
};

struct DcpMetadata {
  std::string version;             // empty where there is none
  std::vector<std::string> files;  // beside .metadata, each named once
  std::vector<DcpPlace> places;
  std::vector<DcpTensor> tensors;  // each name once, and objects too
  std::vector<DcpObject> objects;
  // What the pickle names besides the classes that torch's planners and writers put there: torch would import these.
  std::vector<std::string> foreign_globals;
};

// Longer paths are refused.
inline constexpr size_t kDcpPathBytesMax = 4096;

// Fails with ErrorCode::corrupt and an offset in the pickle, or with ErrorCode::interrupted. Time and memory are bounded by the
// bytes that are there: objects that stand at more places than any writer puts them are refused.
Result<DcpMetadata> parse_dcp_metadata(std::span<const std::byte> pickle,
                                       const std::function<bool()>& interrupted = {}) noexcept;

// Does a piece lie inside its tensor, does no other begin where it does, and do all pieces together have as many elements? The
// fault, or an empty text.
std::string check_dcp_pieces(const DcpTensor& tensor);

}  // namespace headrace::format
