// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint, one behind the other, each as its elements in row-major order: whatever their strides, and turned
// into another floating-point type on request.
// One thread beside the handle's.
// Borrows the handle and the set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <headrace/checkpoint_set.h>

#include "convert/range_stream.h"
#include "convert/storage_sums.h"

namespace headrace::convert {

// What is to be read of a tensor.
struct TensorOrder {
  CheckpointSet::Tensor tensor;
  std::optional<DType> as;  // only from is_float_source() to is_float_target()
};

using TensorPiece = Piece;  // of the order's tensor, and of what it is turned into

// The bytes that the tensor has when it is read so.
[[nodiscard]] uint64_t ordered_bytes(const CheckpointSet& set, const TensorOrder& order);

class TensorStream {
 public:
  // Fails where a strided tensor's extent is larger than the memory that is taken for one (kExtentBytesMax), and for files of
  // big-endian machines. `sums` is told of all bytes, and has to expect() them.
  static constexpr uint64_t kExtentBytesMax = uint64_t{1} << 30;
  [[nodiscard]] static Result<TensorStream> create(Handle& handle, const CheckpointSet& set,
                                                   std::span<const TensorOrder> orders,
                                                   std::function<bool()> interrupted, StorageSums* sums = nullptr);

  // In order, without a gap; tensors of no bytes are left out. Nothing at the end. A piece stays until the next call.
  [[nodiscard]] Result<std::optional<TensorPiece>> next();
  // How many finite elements became infinite in another type so far.
  [[nodiscard]] uint64_t overflows() const noexcept { return overflows_; }

 private:
  struct Part {
    const StoredTensor* stored = nullptr;
    uint32_t file = 0;
    DType as = DType::float32;
    uint64_t bytes = 0;  // as handed out
  };

  TensorStream(RangeStream ranges, std::vector<Part> parts, std::function<bool()> interrupted, StorageSums* sums)
      : ranges_(std::move(ranges)), parts_(std::move(parts)), interrupted_(std::move(interrupted)), sums_(sums) {}
  [[nodiscard]] TensorPiece next_gathered();
  [[nodiscard]] TensorPiece turned(size_t part, uint64_t offset_bytes, std::span<const std::byte> bytes);

  RangeStream ranges_;
  std::vector<Part> parts_;
  std::function<bool()> interrupted_;
  StorageSums* sums_;                // may be null
  std::vector<std::byte> extent_;    // of the strided tensor that is being handed out
  std::optional<size_t> gathering_;  // its part
  uint64_t gathered_elements_ = 0;
  std::vector<std::byte> gathered_;
  std::vector<std::byte> carried_;  // the first bytes of an element that a piece cut
  std::vector<std::byte> turned_;
  uint64_t overflows_ = 0;
};

// The bytes from a tensor's first element to behind its last one.
[[nodiscard]] uint64_t extent_bytes(const StoredTensor& tensor);
// The same as a part of its storage: what a stream reads.
[[nodiscard]] StorageRange range_of(const CheckpointSet& set, CheckpointSet::Tensor tensor);

}  // namespace headrace::convert
