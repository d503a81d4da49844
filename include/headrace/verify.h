// SPDX-License-Identifier: Apache-2.0
// Is a checkpoint whole, and is it the same as another one? Everything is read once, as a stream, in bounded memory.
// Any thread; calls block until done.
// Results own all they tell.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <headrace/checkpoint_set.h>
#include <headrace/error.h>
#include <headrace/export.h>
#include <headrace/handle.h>
#include <headrace/progress.h>

namespace headrace {

struct VerifyOptions {
  enum class Stats : uint8_t { none, per_tensor } stats = Stats::none;
  Progress progress = {};
};

struct VerifiedFile {
  std::string path;
  std::string format;
  uint64_t bytes = 0;         // its length
  uint64_t summed_bytes = 0;  // compared with a CRC-32 that the file holds
  uint64_t read_bytes = 0;    // read, and there was nothing to compare them with
};

struct TensorStats {
  std::string name;
  DType dtype = DType::float32;
  uint64_t elements = 0;  // counted; of complex ones each part counts. 0: `why_not` says why
  uint64_t nan = 0;
  uint64_t inf = 0;
  uint64_t zero = 0;
  std::optional<double> min, max;  // of those that are not NaN
  std::string why_not;
};

struct Verification {
  std::string path;
  std::vector<VerifiedFile> files;
  std::vector<TensorStats> stats;
  std::vector<CheckpointProblem> problems;
  [[nodiscard]] HEADRACE_EXPORT bool good() const noexcept;  // no problem of Severity::error
};

// Structure, sums of all records, ranges, and the index against the files. What is wrong is among the problems; an Error means
// that it could not be told: a file that is not there, a device that does not read, an interruption. Takes what
// inspect_checkpoint() takes.
[[nodiscard]] HEADRACE_EXPORT Result<Verification> verify_checkpoint(Handle& handle, const std::string& path,
                                                                     const VerifyOptions& options = {});

struct TensorDifference {
  enum class Kind : uint8_t { only_here, only_there, dtype, shape, bytes } kind = Kind::bytes;
  std::string tensor;
  std::string text;
  // Of Kind::bytes.
  uint64_t first_bytes = 0;  // offset of the first byte that differs, among the tensor's elements in row-major order
  uint64_t differing_bytes = 0;  // how many
  std::optional<uint64_t> file_offset_bytes,
      other_file_offset_bytes;  // of that byte, where the tensor lies in one piece
};
// "only-here", "only-there", "dtype", "shape", "bytes".
[[nodiscard]] HEADRACE_EXPORT std::string_view difference_name(TensorDifference::Kind kind) noexcept;

struct Comparison {
  std::string path;
  std::string other;
  uint64_t compared_tensors = 0;
  uint64_t compared_bytes = 0;  // of one side
  std::vector<TensorDifference> differences;
};

// Tensor by tensor, whatever the formats and however the files are cut: names, types, shapes, and bytes (a NaN is equal to
// itself, -0.0 is not 0.0). Sums are not looked at.
[[nodiscard]] HEADRACE_EXPORT Result<Comparison> compare_checkpoints(Handle& handle, const std::string& path,
                                                                     const std::string& other,
                                                                     const Progress& progress = {});

// docs/schema/verify.json and docs/schema/verify-against.json.
[[nodiscard]] HEADRACE_EXPORT std::string to_json(const Verification& verification);
[[nodiscard]] HEADRACE_EXPORT std::string to_json(const Comparison& comparison);

}  // namespace headrace
