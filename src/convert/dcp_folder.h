// SPDX-License-Identifier: Apache-2.0
// A DCP folder as its .metadata tells it, held against the files beside it: which bytes of which file are whose.
// One thread beside the handle's.
// Owns the metadata, which its pieces point into: it is not moved once it is open.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/checkpoint_set.h>
#include <headrace/handle.h>

#include "format/dcp_metadata.h"

namespace headrace::convert {

// What is wrong with a folder; of a thousand things of it the rest is only counted.
class DcpProblems {
 public:
  explicit DcpProblems(std::string folder) : folder_(std::move(folder)) {}
  // `file` is a name in the folder.
  void tell(CheckpointProblem::Severity severity, std::string_view file, std::string_view tensor, uint64_t offset_bytes,
            std::string text);
  [[nodiscard]] std::vector<CheckpointProblem> take();

 private:
  std::string folder_;
  std::vector<CheckpointProblem> all_;
  uint64_t more_ = 0;
  bool more_errors_ = false;
};

// Bytes of a file, and what they belong to.
struct DcpPlaced {
  std::string_view name;
  const format::DcpTensor* tensor = nullptr;  // null: an object
  const format::DcpPiece* piece = nullptr;    // of the tensor
  const format::DcpPlace* place = nullptr;
  size_t tensor_index = 0;
};

struct DcpFile {
  uint64_t bytes = 0;
  // By offset. None overlaps another, except those of one safetensors file, which all begin where it does.
  std::vector<DcpPlaced> placed;
};

struct DcpFolder {
  std::string path;
  format::DcpMetadata metadata;
  std::map<std::string, DcpFile> files;  // by name; those that are there

  // What does not fit goes to `problems`.
  [[nodiscard]] static Result<std::unique_ptr<DcpFolder>> open(Handle& handle, const std::string& path,
                                                               const std::function<bool()>& interrupted,
                                                               DcpProblems& problems);
};

// "FOLDER/NAME".
[[nodiscard]] std::string dcp_path(const std::string& folder, std::string_view name);
// Blocks until all is there.
[[nodiscard]] Result<std::vector<std::byte>> read_bytes(Handle& handle, const File& file, uint64_t offset_bytes,
                                                        uint64_t bytes);
// May a safetensors file begin with these bytes, of which `rest_bytes` follow? nine of them tell.
inline constexpr uint64_t kSafetensorsFirstBytes = 9;
[[nodiscard]] bool begins_like_safetensors(std::span<const std::byte> first, uint64_t rest_bytes);

}  // namespace headrace::convert
