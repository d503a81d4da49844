// SPDX-License-Identifier: Apache-2.0
// What is in a checkpoint, told from the heads of its files alone: no tensor is read, nothing in a pickle is run.
// Any thread; calls block until done.
// An Inspection owns all it tells.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <headrace/checkpoint_set.h>
#include <headrace/error.h>
#include <headrace/export.h>
#include <headrace/handle.h>

namespace headrace {

struct InspectedFile {
  std::string path;
  std::string format;  // checkpoint_format_name(), or "dcp"
  uint64_t bytes = 0;
  uint64_t storages = 0;
  uint64_t storage_bytes = 0;
  uint64_t storages_with_crc32 = 0;
  std::vector<std::string> unknown_globals;  // of its pickle: torch.load(weights_only=True) refuses the file for these
  Metadata metadata;
};

struct InspectedTensor {
  std::string name;
  DType dtype = DType::float32;
  std::vector<uint64_t> shape;   // in elements
  std::vector<int64_t> strides;  // in elements
  uint32_t file = 0;             // index into Inspection::files
  uint64_t offset_bytes = 0;     // of its first byte, in the file
  uint64_t bytes = 0;            // of its elements
  uint64_t alignment_bytes = 0;  // the largest power of two that divides the offset
  bool contiguous = true;
  uint64_t pieces = 1;      // that it was cut into: in DCP folders; the offset is then that of the first one's archive
  std::string shares_with;  // the name of the first tensor in the same storage; empty where this is the first
};

struct Inspection {
  std::string path;
  std::vector<InspectedFile> files;
  std::optional<std::string> index;      // path of the shards' index
  std::vector<InspectedTensor> tensors;  // file by file, in the order of each
  std::vector<StoredValue> others;       // what torch files hold besides tensors
  std::vector<CheckpointProblem> problems;
};

struct InspectOptions {
  std::function<bool()> interrupted = {};
};

// What CheckpointSet::open() takes, and folders of torch.distributed.checkpoint. ErrorCode::corrupt when a file breaks its format: then there is nothing to tell about it.
[[nodiscard]] HEADRACE_EXPORT Result<Inspection> inspect_checkpoint(Handle& handle, const std::string& path,
                                                                    const InspectOptions& options = {});

// The number of elements of a shape; UINT64_MAX where it does not fit.
[[nodiscard]] HEADRACE_EXPORT uint64_t element_count(const std::vector<uint64_t>& shape) noexcept;

// docs/schema/inspect.json. Names that are not UTF-8 are told with U+FFFD in the place of what is not.
[[nodiscard]] HEADRACE_EXPORT std::string to_json(const Inspection& inspection);

}  // namespace headrace
