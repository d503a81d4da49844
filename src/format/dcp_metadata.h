// SPDX-License-Identifier: Apache-2.0
// The file .metadata of torch's distributed checkpoints (DCP): which tensors there are and where their pieces lie. It is a
// pickle that torch loads by plain pickle.load; here nothing of it is run: docs/formats/dcp.md.
// Any thread: pure functions over bytes; no exception leaves.
// Owns what it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <headrace/error.h>
#include <headrace/tensor.h>

namespace headrace::format {

// Bytes of a file of the folder: for tensors and objects a whole archive of torch.save.
struct DcpPlace {
  std::string file;  // beside .metadata
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

struct DcpPiece {
  std::vector<uint64_t> offsets;  // of its first element in the tensor
  std::vector<uint64_t> shape;
  std::optional<DcpPlace> place;  // none: the metadata name the piece and not where it is
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
  std::optional<DcpPlace> place;
};

struct DcpMetadata {
  std::string version;  // empty where there is none
  std::vector<DcpTensor> tensors;
  std::vector<DcpObject> objects;
  // What the pickle names besides the classes that torch's planners and writers put there: torch would import these.
  std::vector<std::string> foreign_globals;
};

// Fails with ErrorCode::corrupt and an offset in the pickle.
Result<DcpMetadata> parse_dcp_metadata(std::span<const std::byte> pickle) noexcept;

// Does a piece lie inside its tensor, and do all pieces together have as many elements? The fault, or an empty text.
std::string check_dcp_pieces(const DcpTensor& tensor);

}  // namespace headrace::format
