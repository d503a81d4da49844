// SPDX-License-Identifier: Apache-2.0
// What the archive of one piece of a DCP folder holds, told from its pickle: a tensor of one storage, or an object.
// Any thread: pure functions.
// Owns what it returns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <headrace/pickle.h>
#include <headrace/tensor.h>

#include "format/dcp_metadata.h"

namespace headrace::format {

struct DcpContent {
  enum class Kind : uint8_t {
    tensor,
    other_tensor,  // made by a function that is not looked into
    unknown,       // made by something that is none of torch's
    object,
  } kind = Kind::object;
  // Of a tensor.
  std::string dtype_name;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;
  uint64_t first_element = 0;  // in its storage
  bool turned = false;         // a conjugate or negative view
  std::string storage_key;
  uint64_t storage_bytes = 0;
  // Names that torch.load(weights_only=True) refuses.
  std::vector<std::string> foreign_globals;
};

[[nodiscard]] DcpContent describe_dcp_piece(const Pickle& pickle);

// Is that what the metadata say of this piece? The fault, or an empty text. `piece`: null for an object.
[[nodiscard]] std::string compare_dcp_piece(const DcpContent& content, const DcpTensor* tensor, const DcpPiece* piece);

// In a legacy archive: of the storages that stand behind the list of keys, with the count before each. None: the list is not
// one of storages of the object.
[[nodiscard]] std::optional<uint64_t> legacy_storages_bytes(const Pickle& object, const Pickle& keys);

}  // namespace headrace::format
