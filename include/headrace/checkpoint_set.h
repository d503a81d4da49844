// SPDX-License-Identifier: Apache-2.0
// A checkpoint as people name it: one file, or several that belong together (shards), found by their folder, their index or
// the common start of their names.
// Any thread: const once open.
// A CheckpointSet owns its open files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/checkpoint.h>
#include <headrace/error.h>
#include <headrace/export.h>

namespace headrace {

// What `model.safetensors.index.json` and its like say: docs/formats/shard-index.md.
struct ShardIndex {
  struct Entry {
    std::string tensor;
    uint32_t file = 0;  // index into CheckpointFiles::paths
  };
  std::string path;
  std::vector<Entry> entries;           // sorted by tensor
  std::optional<uint64_t> total_bytes;  // metadata.total_size, where it is a number
};

struct CheckpointFiles {
  std::vector<std::string> paths;  // in the order of their names; one ordinary file is that file alone
  std::optional<ShardIndex> index;
  // Of a folder that holds weights in several forms: the files passed over, whose suffix is another.
  std::vector<std::string> beside;
};

// Which files make up the checkpoint that `path` names. Fails with ErrorCode::invalid_argument where that cannot be told (a
// checkpoint saved over another with other parts leaves both lying there), ErrorCode::corrupt for an index that is none, and
// with the errno where there is nothing. No file but the index is opened.
[[nodiscard]] HEADRACE_EXPORT Result<CheckpointFiles> find_checkpoint_files(const std::string& path);

// Something that is wrong, or that a reader may stumble over.
struct CheckpointProblem {
  enum class Severity : uint8_t {
    note,     // nothing to mend
    warning,  // readable; some readers are slower, or refuse it
    error,    // not what it should be
  };
  Severity severity = Severity::error;
  std::string file;           // its path
  std::string tensor;         // empty: the file as a whole
  uint64_t offset_bytes = 0;  // in the file; 0 where it is about no place
  std::string text;
};
// "note", "warning", "error".
[[nodiscard]] HEADRACE_EXPORT std::string_view severity_name(CheckpointProblem::Severity severity) noexcept;

class HEADRACE_EXPORT CheckpointSet {
 public:
  struct Tensor {
    uint32_t file = 0;    // index into files()
    uint32_t tensor = 0;  // index into that file's tensors()
  };

  // Finds and opens all files. That a shard does not hold what the index says is no error here: see problems().
  [[nodiscard]] static Result<CheckpointSet> open(Handle& handle, const std::string& path,
                                                  const LoadOptions& options = {});
  // Of files that are open already: those of `index`, in its order, where there is one.
  [[nodiscard]] static CheckpointSet of(std::vector<CheckpointFile> files, std::optional<ShardIndex> index,
                                        std::vector<std::string> beside = {});

  CheckpointSet(CheckpointSet&&) noexcept;
  CheckpointSet& operator=(CheckpointSet&&) noexcept;
  ~CheckpointSet();

  [[nodiscard]] std::span<const CheckpointFile> files() const noexcept;
  [[nodiscard]] const std::optional<ShardIndex>& index() const noexcept;
  // Of all files, file by file, in the order of each.
  [[nodiscard]] std::span<const Tensor> tensors() const noexcept;
  [[nodiscard]] const StoredTensor& stored(Tensor tensor) const noexcept;
  // By name; of several with one name the first.
  [[nodiscard]] std::optional<Tensor> find(std::string_view name) const;
  // Where the index and the files, or the files among themselves, contradict each other: of Severity::error. And a
  // note where other files of the folder were passed over.
  [[nodiscard]] std::vector<CheckpointProblem> problems() const;

 private:
  class Impl;
  explicit CheckpointSet(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
