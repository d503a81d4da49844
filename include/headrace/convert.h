// SPDX-License-Identifier: Apache-2.0
// A checkpoint written again: in another format, cut into shards or put together, in another floating-point type, in part,
// under other names. As a stream: memory is bounded, whatever the size of the model.
// Any thread; calls block until done.
// Results own all they tell.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/atomic_file.h>
#include <headrace/checkpoint_set.h>
#include <headrace/error.h>
#include <headrace/export.h>
#include <headrace/handle.h>
#include <headrace/progress.h>

namespace headrace {

struct ConvertOptions {
  CheckpointFormat format = CheckpointFormat::safetensors;
  // Tensors of float64, float32, float16 and bfloat16 become this, which is one of them.
  std::optional<DType> dtype = {};
  // By the name in the source; empty: all.
  std::function<bool(std::string_view name)> select = {};
  // The new name; empty: the old one. Two tensors of one name are an error.
  std::function<std::string(std::string_view name)> rename = {};
  // Above 0: the target is a folder of shards of at most so many bytes of tensors (a tensor larger than that has a shard of its
  // own) with an index, named as transformers names them.
  uint64_t shard_bytes = 0;
  Existing existing = Existing::refuse;
  // What a torch file's object holds besides tensors has no place in safetensors, in shards, and beside changes of tensors.
  enum class Others : uint8_t { refuse, leave_out } others = Others::refuse;
  // A source's CRC-32 are compared with what is read, where it has them: of each storage of which a part is taken.
  Verify verify = Verify::automatic;
  Durability durability = Durability::data;
  Progress progress = {};
};

struct Conversion {
  std::string source;
  std::string target;
  std::vector<std::string> files;  // written, without the index
  std::optional<std::string> index;
  uint64_t tensors = 0;       // of an object taken over as a whole those that CheckpointFile::tensors() tells
  uint64_t source_bytes = 0;  // of the source's files
  uint64_t read_bytes = 0;    // of tensors or storages that were taken over
  uint64_t target_bytes = 0;  // of the files written
  uint64_t overflows = 0;     // finite elements that became infinite in a smaller type
  std::vector<std::string> notes;
};

// From torch to torch without a change of tensors the whole object is taken over: nesting, numbers, classes, shared
// storages. Else tensors are taken by name (nested ones by their joined names) into one flat dict. Tensors that are the very
// same bytes share them in a torch file, and are written each in a safetensors file.
// The target appears whole or not at all: a file as AtomicFile says, a folder of shards by one rename at the end.
[[nodiscard]] HEADRACE_EXPORT Result<Conversion> convert_checkpoint(Handle& handle, const std::string& source,
                                                                    const std::string& target,
                                                                    const ConvertOptions& options);

// docs/schema/convert.json.
[[nodiscard]] HEADRACE_EXPORT std::string to_json(const Conversion& conversion);

}  // namespace headrace
