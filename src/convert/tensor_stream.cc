// SPDX-License-Identifier: Apache-2.0
// From pieces of files to pieces of tensors: strided ones are collected whole and then gathered, elements cut in two are put
// together before they are turned into another type.
// See the header for threads.
// Owns what the header says.
#include "convert/tensor_stream.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <headrace/inspect.h>

#include "convert/elements.h"
#include "format/format_error.h"

namespace headrace::convert {
namespace {

constexpr uint64_t kGatherBytes = uint64_t{4} << 20;

// Bytes of one element as the format's shape counts them; packed types count bytes.
uint32_t element_bytes(DType dtype) { return std::max<uint32_t>(dtype_facts(dtype).bits / 8, 1); }

}  // namespace

uint64_t extent_bytes(const StoredTensor& tensor) {
  if (tensor.bytes == 0) return 0;
  uint64_t last = 0;  // index of the last element in the storage
  for (size_t d = 0; d < tensor.shape.size(); ++d)
    last += (tensor.shape[d] - 1) * static_cast<uint64_t>(tensor.strides[d]);
  return tensor.contiguous ? tensor.bytes : (last + 1) * element_bytes(tensor.dtype);
}

StorageRange range_of(const CheckpointSet& set, CheckpointSet::Tensor tensor) {
  const StoredTensor& stored = set.stored(tensor);
  return {.file = tensor.file,
          .storage = stored.storage,
          .offset_bytes = stored.storage_offset_bytes,
          .bytes = extent_bytes(stored)};
}

uint64_t ordered_bytes(const CheckpointSet& set, const TensorOrder& order) {
  const StoredTensor& stored = set.stored(order.tensor);
  if (!order.as || *order.as == stored.dtype) return stored.bytes;
  return stored.bytes / element_bytes(stored.dtype) * element_bytes(*order.as);
}

Result<TensorStream> TensorStream::create(Handle& handle, const CheckpointSet& set, std::span<const TensorOrder> orders,
                                          std::function<bool()> interrupted, StorageSums* sums) {
  std::vector<FileRange> ranges;
  std::vector<Part> parts;
  for (const TensorOrder& order : orders) {
    const StoredTensor& stored = set.stored(order.tensor);
    const CheckpointFile& file = set.files()[order.tensor.file];
    const auto refuse = [&](std::string detail) {
      return std::unexpected(Error{.code = ErrorCode::unavailable,
                                   .operation = "read tensor",
                                   .path = file.path(),
                                   .detail = fmt::format("tensor {}: {}", format::quote_name(stored.name), detail)});
    };
    if (!file.little_endian())
      return refuse("a big-endian machine wrote this file; load it with torch.load and save it again");
    const uint64_t extent = extent_bytes(stored);
    if (!stored.contiguous && extent > kExtentBytesMax)
      return refuse(
          fmt::format("its elements are strewn over {} bytes, and at most {} are gathered; save it contiguous", extent,
                      kExtentBytesMax));
    ranges.push_back({.file = order.tensor.file,
                      .offset_bytes = file.storages()[stored.storage].offset_bytes + stored.storage_offset_bytes,
                      .bytes = extent});
    parts.push_back({.stored = &stored,
                     .file = order.tensor.file,
                     .as = order.as.value_or(stored.dtype),
                     .bytes = ordered_bytes(set, order)});
  }
  std::vector<File> files;
  for (const CheckpointFile& file : set.files()) {
    Result<File> opened = File::from_descriptor(file.descriptor());
    if (!opened) return std::unexpected(std::move(opened).error());
    files.push_back(*std::move(opened));
  }
  Result<RangeStream> stream = RangeStream::create(handle, std::move(files), std::move(ranges), interrupted);
  if (!stream) return std::unexpected(std::move(stream).error());
  return TensorStream(*std::move(stream), std::move(parts), std::move(interrupted), sums);
}

Result<std::optional<TensorPiece>> TensorStream::next() {
  while (true) {
    if (gathering_) {
      // A few bytes expand to as many as a shape can say: no read would ask.
      if (interrupted_ && interrupted_())
        return std::unexpected(Error{.code = ErrorCode::interrupted, .operation = "read", .detail = "it was stopped"});
      return next_gathered();
    }
    const Result<std::optional<RangePiece>> piece = ranges_.next();
    if (!piece) return std::unexpected(piece.error());
    if (!*piece) return std::nullopt;
    const RangePiece& range = **piece;
    const Part& part = parts_[range.item];
    if (sums_ != nullptr) {
      const StorageRange place = {.file = part.file,
                                  .storage = part.stored->storage,
                                  .offset_bytes = part.stored->storage_offset_bytes + range.offset_bytes,
                                  .bytes = range.bytes.size()};
      if (Status good = sums_->take(place, range.bytes); !good) return std::unexpected(std::move(good).error());
    }
    if (!part.stored->contiguous) {
      extent_.insert(extent_.end(), range.bytes.begin(), range.bytes.end());
      if (extent_.size() < extent_bytes(*part.stored)) continue;
      gathering_ = range.item;
      gathered_elements_ = 0;
      continue;
    }
    const TensorPiece turned = this->turned(range.item, range.offset_bytes, range.bytes);
    if (!turned.bytes.empty()) return turned;
  }
}

TensorPiece TensorStream::next_gathered() {
  const size_t at = *gathering_;
  const StoredTensor& stored = *parts_[at].stored;
  const uint32_t width = element_bytes(stored.dtype);
  const uint64_t elements = std::min(kGatherBytes / width, stored.bytes / width - gathered_elements_);
  gathered_.resize(elements * width);
  gather({.extent = extent_, .shape = stored.shape, .strides = stored.strides, .element_bytes = width},
         gathered_elements_, gathered_);
  if (stored.conjugate) negate(stored.dtype, gathered_, Negate::imaginary);
  if (stored.negative) negate(stored.dtype, gathered_, Negate::all);
  const uint64_t offset = gathered_elements_ * width;
  gathered_elements_ += elements;
  if (gathered_elements_ * width == stored.bytes) {
    gathering_.reset();
    extent_.clear();
  }
  return turned(at, offset, gathered_);
}

// The piece as it goes out; empty where it holds no whole element yet.
TensorPiece TensorStream::turned(size_t part, uint64_t offset_bytes, std::span<const std::byte> bytes) {
  const DType from = parts_[part].stored->dtype;
  const DType to = parts_[part].as;
  if (from == to) return {.item = part, .offset_bytes = offset_bytes, .bytes = bytes};
  const uint32_t width = element_bytes(from);
  const uint32_t new_width = element_bytes(to);
  const uint64_t first_element = (offset_bytes - carried_.size()) / width;
  const size_t missing = carried_.empty() ? 0 : std::min(width - carried_.size(), bytes.size());
  carried_.insert(carried_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(missing));
  bytes = bytes.subspan(missing);
  const uint64_t whole_from_carried = carried_.size() == width ? 1 : 0;
  const uint64_t elements =
      whole_from_carried + (carried_.empty() || whole_from_carried == 1 ? bytes.size() / width : 0);
  turned_.resize(elements * new_width);
  const std::span<std::byte> target(turned_);
  if (whole_from_carried == 1) {
    overflows_ += convert_elements(from, carried_, to, target.first(new_width));
    carried_.clear();
  }
  const uint64_t direct = elements - whole_from_carried;
  overflows_ += convert_elements(from, bytes.first(direct * width), to, target.subspan(whole_from_carried * new_width));
  const std::span<const std::byte> rest = bytes.subspan(direct * width);
  carried_.insert(carried_.end(), rest.begin(), rest.end());
  return {.item = part, .offset_bytes = first_element * new_width, .bytes = target};
}

}  // namespace headrace::convert
