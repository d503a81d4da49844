// SPDX-License-Identifier: Apache-2.0
// What convert writes: tensors or an object's storages, taken from a stream, as one file of any format.
// One thread beside the handle's.
// Borrows the handle and the opened source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <headrace/convert.h>

#include "base/progress_meter.h"
#include "convert/tensor_stream.h"

namespace headrace::convert {

struct OutputTensor {
  std::string name;
  TensorOrder order;
  DType dtype = DType::float32;
  std::vector<uint64_t> shape;  // as the target's format counts it
  uint64_t bytes = 0;
};

// What is the same for all files of one conversion.
struct OutputContext {
  Handle& handle;
  const CheckpointSet& set;
  const ConvertOptions& options;
  base::ProgressMeter& meter;
  std::span<std::byte> staging;  // for SaveOptions::device_copy
  StorageSums* sums = nullptr;   // null: sums are not compared
  uint64_t read_bytes = 0;       // counted up
  uint64_t overflows = 0;        // counted up
};

// Each returns the length of the file.
[[nodiscard]] Result<uint64_t> write_tensors(OutputContext& context, const std::string& path,
                                             const std::vector<OutputTensor>& tensors, const Metadata& metadata);
// The object of a torch file, as it is, in torch's other container or in the same.
[[nodiscard]] Result<uint64_t> write_object(OutputContext& context, const std::string& path);

}  // namespace headrace::convert
